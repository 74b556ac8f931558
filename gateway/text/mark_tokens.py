"""The tokens in which a model writes a mark, such as the one that ends its reasoning, so that workers can see and force
it without any text.

Most marks are one added token, which stands for nothing else. A mark that is ordinary text has several tokens, and the
model may join its ends with what stands around them: `.</` for `</`. So each place of a mark has all the tokens that
may stand there, first the one that the tokenizer itself takes."""

import re
from collections.abc import Iterable

from gateway.text.parsed import MAX_SPACE, SPACE
from gateway.text.tokenizer import ModelTokenizer
from mesh.messages.jobs import TokenSequence

Places = tuple[TokenSequence, ...]  # the tokens that may stand at each place of a mark
# Names of tokens that may be white space: as it is, in the letters of byte-level vocabularies, or as bytes.
_SPACES = re.compile(rf"[{SPACE}\u0120\u010a\u010d\u0109\u2581]+|<0x(?:20|09|0A|0D)>")


def mark_places(tokenizer: ModelTokenizer, mark: str) -> Places:
    ids, added = _inside(tokenizer, mark), frozenset(tokenizer.added.values())
    if all(token in added for token in (ids[0], ids[-1])):
        return tuple(TokenSequence((token,)) for token in ids)
    first, last = tokenizer.name_of(ids[0]), tokenizer.name_of(ids[-1])
    names = {number: name for name, number in tokenizer.numbers().items() if number not in added}
    if len(ids) == 1:
        return (_place(ids[0], (number for number, name in names.items() if first in name)),)
    begins = () if ids[0] in added else (number for number, name in names.items() if name.endswith(first))
    ends = () if ids[-1] in added else (number for number, name in names.items() if name.startswith(last))
    middle = (TokenSequence((token,)) for token in ids[1:-1])
    return (_place(ids[0], begins), *middle, _place(ids[-1], ends))


def space_tokens(tokenizer: ModelTokenizer) -> tuple[int, ...]:
    """The tokens of white space that may stand before a mark at the beginning of an answer."""
    found = (number for name, number in tokenizer.numbers().items() if _SPACES.fullmatch(name))
    texts = ((number, tokenizer.token_text(number)) for number in found)
    return tuple(sorted(number for number, text in texts if not text.strip(SPACE) and 0 < len(text) <= MAX_SPACE))


def stands_open(ids: tuple[int, ...], begin: Places, end: Places) -> bool:
    """Whether a text ends behind a `begin` without an `end`."""
    opens, closes = ([frozenset(place.tokens) for place in mark] for mark in (begin, end))
    for stop in range(len(ids), 0, -1):
        if _ends_at(ids, stop, closes):
            return False
        if _ends_at(ids, stop, opens):
            return True
    return False


def _ends_at(ids: tuple[int, ...], stop: int, places: list[frozenset[int]]) -> bool:
    start = stop - len(places)
    return ids[stop - 1] in places[-1] and start >= 0 and all(map(_holds, places, ids[start:stop]))


def _holds(place: frozenset[int], token: int) -> bool:
    return token in place


def _inside(tokenizer: ModelTokenizer, mark: str) -> tuple[int, ...]:
    """The tokens of the mark behind other text: at the beginning of a text some tokenizers add a space."""
    before, both = tokenizer.encode("\n", special=False), tokenizer.encode("\n" + mark, special=False)
    if len(both) > len(before) and both[: len(before)] == before:
        return both[len(before) :]
    return tokenizer.encode(mark, special=False)


def _place(own: int, others: Iterable[int]) -> TokenSequence:
    return TokenSequence((own, *sorted(set(others) - {own})))
