"""Bytes that are broken at random, and the error for a broken promise: the targets of the wires share them.

A case is drawn from one random generator, so its seed repeats it."""

import struct
from random import Random

ODD_INTS = (0, 1, 2, 3, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_WORDS = tuple(struct.pack("<Q", value) for value in ODD_INTS)


class Wrong(AssertionError):
    """The code broke a promise for this case."""


def mutated(rng: Random, raw: bytes) -> bytes:
    """The bytes with one to three pieces flipped, overwritten, cut out, repeated or put in."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(data) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 32))
        match rng.randrange(7):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(data):
                data[at] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + size]
            case 4:
                data[at:at] = data[at : at + size]
            case 5:
                word = rng.choice(_WORDS)[: rng.choice((1, 2, 4, 8))]
                data[at : at + len(word)] = word
            case _:
                data[at:at] = rng.randbytes(size)
    return bytes(data)


def chance(rng: Random, share: float) -> bool:
    return rng.random() < share
