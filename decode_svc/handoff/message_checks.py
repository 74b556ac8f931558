"""Checks what a prefill worker states about its writes, before decode computes with it.

A problem ends the session of that prefill worker. Without these checks a wrong number would be found deeper inside, as
a failure of the message or of another request's: Commit's token becomes part of the text that a later Open reads."""

from mesh.messages.job_check import INT32
from mesh.messages.kv_messages import Commit, Written


def written_problem(written: Written, layers: int) -> str:
    """The reason why no writer into pages of `layers` layers sends this; empty: it may."""
    first, count, pages = written.first_layer, written.layers, written.pages
    if not 0 <= first < first + count <= layers:
        return f"Written.first_layer, layers: {first}+{count} are no layers of pages with {layers}"
    if len(pages) != len(written.checksums):
        return f"Written.checksums: are {len(written.checksums)}, for {len(pages)} pages"
    return "" if len(set(pages)) == len(pages) else "Written.pages: names a page twice"


def commit_problem(commit: Commit, position: int, vocabulary: int) -> str:
    """Why the first token cannot be the text's next one, at this position; empty: it can. A vocabulary of 0 is not
    known."""
    first = commit.first
    if first is None:
        return ""
    if first.position != position:
        return f"Commit.first: has position {first.position}, the attempt's first one is {position}"
    limit = vocabulary or INT32
    return "" if 0 <= first.token < limit else f"Commit.first: is token {first.token}, the vocabulary has {limit} ids"
