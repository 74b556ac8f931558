"""Logprobs of prompts as JSON of the OpenAI API: vLLM's `prompt_logprobs`, and completions that echo their prompt.

A long prompt has a million entries, so both are rendered piece by piece and in a thread: neither a slice's text nor its
encoding holds the event loop up. What is rendered stays JSON until the answer is sent."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from gateway.core import PromptScores, ScoredToken
from gateway.openai.answer import TokenNames, completion_logprobs
from gateway.openai.sse import encode
from gateway.text.tokenizer import Detokenizer, ModelTokenizer
from mesh.messages import Token

SLICE = 64  # entries that are encoded at once

Json = dict[str, Any]


def prompt_logprobs(tokenizer: ModelTokenizer, scores: PromptScores, top: int) -> msgspec.Raw:
    """A list with null for the first token, and for each other one an object: its id, and the `top` likeliest ids, with
    logprob, rank and text."""
    texts = _Texts(tokenizer)
    parts = [b"[null"]
    for some in _sliced(scores.entries()):
        parts += (b",", encode([_by_id(entry, top, texts) for entry in some])[1:-1])
    return msgspec.Raw(b"".join((*parts, b"]")))


def _by_id(entry: ScoredToken, top: int, texts: "_Texts") -> Json:
    found = {
        str(token): {"logprob": logprob, "rank": rank, "decoded_token": texts[token]}
        for rank, (token, logprob) in enumerate(zip(entry.top_ids[:top], entry.top_logprobs, strict=False), 1)
    }
    own = {"logprob": entry.logprob, "rank": entry.rank, "decoded_token": texts[entry.token]}
    return {str(entry.token): own, **found}


@dataclass(slots=True)
class EchoedLogprobs:
    """The logprobs of an echoed prompt, as the beginnings of the four lists of a completion's logprobs."""

    text: str  # of the prompt
    lists: dict[str, list[bytes]] = field(default_factory=dict)  # items without brackets, by the name of the list

    def joined(self, names: TokenNames, tokens: Sequence[Token], offsets: Sequence[int]) -> Json:
        """The logprobs of the prompt and of the answer's first tokens behind it; `offsets` count from the answer's
        beginning."""
        after = [len(self.text) + offset for offset in offsets]
        behind = completion_logprobs(names, tokens, after) if tokens else {}
        return {
            name: msgspec.Raw(b"[" + b",".join((*items, *_inner(behind.get(name)))) + b"]")
            for name, items in self.lists.items()
        }


def _inner(values: object) -> tuple[bytes, ...]:
    return (encode(values)[1:-1],) if values else ()


def echoed_logprobs(tokenizer: ModelTokenizer, scores: PromptScores, top: int, *, skip_special: bool) -> EchoedLogprobs:
    """`top`: so many likeliest tokens are listed at each position. Each offset is the place in the echoed text at which
    the token's own text begins, or would begin if it had any."""
    texts, detokenizer = _Texts(tokenizer), Detokenizer(tokenizer, (), skip_special=skip_special)
    pieces, length = list[str](), 0

    def offset_of(token: int) -> int:
        nonlocal length
        before = length
        pieces.append(detokenizer.push(token))
        length += len(pieces[-1])
        return before

    def tops(entry: ScoredToken) -> dict[str, float] | None:
        if not top:
            return None
        listed = zip(entry.top_ids[:top], entry.top_logprobs, strict=False)
        return {texts[entry.token]: entry.logprob} | {texts[token]: logprob for token, logprob in listed}

    columns: dict[str, Callable[[ScoredToken], object]] = {
        "text_offset": lambda entry: offset_of(entry.token),
        "token_logprobs": lambda entry: entry.logprob,
        "tokens": lambda entry: texts[entry.token],
        "top_logprobs": tops,
    }
    first = scores.prompt[0]
    echoed = EchoedLogprobs("")
    echoed.lists = {
        "text_offset": [encode(offset_of(first))],
        "token_logprobs": [b"null"],
        "tokens": [encode(texts[first])],
        "top_logprobs": [b"null"],
    }
    for some in _sliced(scores.entries()):
        for name, column in columns.items():
            echoed.lists[name].append(encode([column(entry) for entry in some])[1:-1])
    echoed.text = "".join(pieces) + detokenizer.flush()
    return echoed


def _sliced(entries: Iterator[ScoredToken]) -> Iterator[list[ScoredToken]]:
    while some := list(islice(entries, SLICE)):
        yield some


class _Texts(dict[int, str]):
    """Texts of single tokens; each is decoded once."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        text = self[token] = self._tokenizer.token_text(token)
        return text
