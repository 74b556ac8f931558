"""Answers as bits, and where two answers differ: in a token, or in a bit of a logprob (the likeliest tokens'
included)."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Best(NamedTuple):
    """One position of an answer: the token, and the fp32 bits of its logprob and of the likeliest tokens' logprobs."""

    token: int
    logprob: bytes
    top_ids: tuple[int, ...]
    top_logprobs: bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers to one request differ; None where they do not."""

    token: int | None  # first position with another token, or where one answer ends early
    logprob: int | None  # first position where a logprob has other bits, or other tokens are the likeliest

    def __bool__(self) -> bool:
        return self.token is not None or self.logprob is not None


def best(token: int, logprob: float, top_ids: Iterable[int], top_logprobs: Iterable[float]) -> Best:
    return Best(token, bits([logprob]), tuple(top_ids), bits(list(top_logprobs)))


def bits(values: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def compare(mine: Sequence[Best], theirs: Sequence[Best]) -> Difference:
    both = list(zip(mine, theirs, strict=False))
    token = next((i for i, (a, b) in enumerate(both) if a.token != b.token), None)
    if token is None and len(mine) != len(theirs):
        token = len(both)
    return Difference(token, next((i for i, (a, b) in enumerate(both) if a[1:] != b[1:]), None))
