"""Hashes of prompts and tokens in receipts.

The hash of a choice's tokens begins with those of its prompt. So a reader who has the prompt can look for the first
token that differs, while a reader who lacks it can neither guess a short answer nor walk through it token by token."""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

TOKEN_BYTES = 4
MARK_BYTES = 2
MOST_MARKS = 1024  # in one receipt


@dataclass(frozen=True, slots=True)
class TokenHashes:
    whole: str  # hash over all tokens
    every: int  # tokens between two marks
    marks: str  # the first bytes of the hash up to each mark


def id_bytes(ids: Sequence[int]) -> bytes:
    """Token ids as 4 bytes each, little endian."""
    packed = ids if isinstance(ids, array) and ids.typecode == "I" else array("I", ids)
    if sys.byteorder == "big":
        packed = packed[:]
        packed.byteswap()
    return packed.tobytes()


def digest(kind: str, data: bytes) -> str:
    """SHA-256. Data of different kinds has different hashes."""
    return hashlib.sha256(f"baton {kind}\n".encode() + data).hexdigest()


def spacing(tokens: int, marks: int) -> int:
    """The smallest power of two that, as the distance of marks, leaves `tokens` tokens at most `marks` of them."""
    every = 1
    while tokens // every > marks:
        every *= 2
    return every


def token_hashes(prompt: bytes, tokens: bytes, marks: int) -> TokenHashes:
    """`prompt` and `tokens` as `id_bytes` makes them; `marks`: how many there may be."""
    running = hashlib.sha256(b"baton tokens\n" + len(prompt).to_bytes(8, "little") + prompt)
    every, found = spacing(len(tokens) // TOKEN_BYTES, marks), list[bytes]()
    step = every * TOKEN_BYTES
    whole_steps = len(tokens) // step * step
    for start in range(0, whole_steps, step):
        running.update(tokens[start : start + step])
        found.append(running.copy().digest()[:MARK_BYTES])
    running.update(tokens[whole_steps:])
    return TokenHashes(running.hexdigest(), every, b"".join(found).hex())
