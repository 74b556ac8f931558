"""Logprobs of prompts as JSON of the OpenAI API: vLLM's `prompt_logprobs`, and completions that echo their prompt.

A long prompt has a million entries, so both are rendered in slices; each is made in a thread
(gateway/dialects/common/pieces.py)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from gateway.core.interface import PromptScores, ScoredToken
from gateway.dialects.common.sse import encode
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer

SLICE = 64  # tokens whose entries are rendered at once

Json = dict[str, Any]


def prompt_logprobs(tokenizer: ModelTokenizer, scores: PromptScores, top: int) -> Iterator[bytes]:
    """The items of a list, in slices: null for the first token, and for each other one an object with its id, and the
    `top` likeliest ids, each with logprob, rank and text."""
    texts = _Texts(tokenizer)
    yield b"null"
    for some in _sliced(scores.entries(), top):
        yield _inner([_by_id(entry, top, texts) for entry in some])


def _by_id(entry: ScoredToken, top: int, texts: "_Texts") -> Json:
    found = {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": texts[token]}
        for rank, (token, logprob) in enumerate(zip(entry.top_ids[:top], entry.top_logprobs, strict=False), 1)
    }
    own = {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": texts[entry.token]}
    return {str(entry.token): own, **found}


@dataclass(frozen=True, slots=True)
class EchoedSlice:
    """Some tokens of an echoed prompt: their text, and their items of the four lists of a completion's logprobs."""

    text: str
    items: dict[str, bytes]  # without brackets, by the name of the list


def echoed_slices(
    tokenizer: ModelTokenizer, scores: PromptScores, top: int, *, skip_special: bool
) -> Iterator[EchoedSlice]:
    """`top`: number of likeliest tokens listed at each position. An offset is the place in the echoed text at which
    the token's own text begins, or would begin if it had any."""
    texts, detokenizer = _Texts(tokenizer), Detokenizer(tokenizer, (), skip_special=skip_special)
    first = scores.prompt[0]
    length = 0
    left = len(scores.prompt)
    for some in _sliced(_with_first(scores), top):
        tokens = [first if entry is None else entry.token for entry in some]
        pieces, offsets = list[str](), list[int]()
        for token in tokens:
            offsets.append(length)
            pieces.append(detokenizer.push(token))
            length += len(pieces[-1])
        left -= len(some)
        if not left:
            pieces.append(detokenizer.flush())
        yield EchoedSlice(
            "".join(pieces),
            {
                "text_offset": _inner(offsets),
                "token_logprobs": _inner([None if entry is None else entry.logprob for entry in some]),
                "tokens": _inner([texts[token] for token in tokens]),
                "top_logprobs": _inner([None if entry is None else _tops(entry, top, texts) for entry in some]),
            },
        )


def _with_first(scores: PromptScores) -> Iterator[ScoredToken | None]:
    """One entry for each token of the prompt; the first token has no logprob."""
    yield None
    yield from scores.entries()


def _tops(entry: ScoredToken, top: int, texts: "_Texts") -> dict[str, float] | None:
    if not top:
        return None
    listed = zip(entry.top_ids[:top], entry.top_logprobs, strict=False)
    return {texts[entry.token]: entry.logprob} | {texts[token]: logprob for token, logprob in listed}


def _inner(items: object) -> bytes:
    return encode(items)[1:-1]


def _sliced(entries: Iterator[Any], top: int) -> Iterator[list[Any]]:
    """The more likeliest tokens each entry lists, the fewer entries a slice has."""
    while some := list(islice(entries, max(1, SLICE // (1 + top // SLICE)))):
        yield some


class _Texts(dict[int, str]):
    """Texts of single tokens; each is decoded once."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        text = self[token] = self._tokenizer.token_text(token)
        return text
