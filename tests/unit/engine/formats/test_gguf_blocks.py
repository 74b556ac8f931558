"""Blocks of GGUF's types: each stands for the numbers of its definition, read here element by element."""

import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.integers.numbers import dequantized
from tests.unit.engine.gguf_files import blocks


def half(raw: bytes, at: int) -> float:
    return float(np.frombuffer(raw[at : at + 2], np.float16)[0])


def nibble(raw: bytes, at: int, i: int) -> int:
    """Element i of 32 whose low nibbles come first."""
    return raw[at + i % 16] >> (4 * (i // 16)) & 15


def q4_0(raw: bytes) -> Iterator[float]:
    yield from ((nibble(raw, 2, i) - 8) * half(raw, 0) for i in range(32))


def q4_1(raw: bytes) -> Iterator[float]:
    yield from (nibble(raw, 4, i) * half(raw, 0) + half(raw, 2) for i in range(32))


def fifth(raw: bytes, at: int, i: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little") >> i & 1


def q5_0(raw: bytes) -> Iterator[float]:
    yield from (((nibble(raw, 6, i) | fifth(raw, 2, i) << 4) - 16) * half(raw, 0) for i in range(32))


def q5_1(raw: bytes) -> Iterator[float]:
    yield from ((nibble(raw, 8, i) | fifth(raw, 4, i) << 4) * half(raw, 0) + half(raw, 2) for i in range(32))


def q8_0(raw: bytes) -> Iterator[float]:
    yield from (struct.unpack_from("b", raw, 2 + i)[0] * half(raw, 0) for i in range(32))


def scale_and_minimum(raw: bytes, group: int) -> tuple[int, int]:
    packed = raw[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    last = packed[group + 4]
    return last & 15 | packed[group - 4] >> 6 << 4, last >> 4 | packed[group] >> 6 << 4


def of_k(raw: bytes, number: Callable[[int, int], int]) -> Iterator[float]:
    for i in range(256):
        scale, least = scale_and_minimum(raw, i // 32)
        yield half(raw, 0) * scale * number(i // 32, i % 32) - half(raw, 2) * least


def k_nibble(raw: bytes, at: int, group: int, i: int) -> int:
    return raw[at + group // 2 * 32 + i] >> (4 * (group % 2)) & 15


def q4_k(raw: bytes) -> Iterator[float]:
    yield from of_k(raw, lambda group, i: k_nibble(raw, 16, group, i))


def q5_k(raw: bytes) -> Iterator[float]:
    yield from of_k(raw, lambda group, i: k_nibble(raw, 48, group, i) | (raw[16 + i] >> group & 1) << 4)


def q6_k(raw: bytes) -> Iterator[float]:
    for i in range(256):
        part, place = i // 128, i % 128
        low = raw[part * 64 + place % 64] >> (4 * (place // 64)) & 15
        high = raw[128 + part * 32 + place % 32] >> (2 * (place // 32)) & 3
        scale = struct.unpack_from("b", raw, 192 + i // 16)[0]
        yield half(raw, 208) * scale * ((low | high << 4) - 32)


def iq4_nl(raw: bytes) -> Iterator[float]:
    table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    yield from (table[nibble(raw, 2, i)] * half(raw, 0) for i in range(32))


def mxfp4(raw: bytes) -> Iterator[float]:
    sizes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for i in range(32):
        code = nibble(raw, 1, i)
        yield (-1 if code & 8 else 1) * sizes[code & 7] * 2.0 ** (raw[0] - 127)


DEFINED = {
    "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0,
    "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k, "IQ4_NL": iq4_nl, "MXFP4": mxfp4,
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFINED)
def test_a_block_stands_for_the_numbers_of_its_definition(kind: str) -> None:
    block, raw = BLOCK_TYPES[kind], blocks(kind, 12)
    matrix = block.integers(np.frombuffer(raw, np.uint8).reshape(3, 4 * block.size))
    wanted = [x for at in range(0, len(raw), block.size) for x in DEFINED[kind](raw[at : at + block.size])]
    assert set(DEFINED) == set(BLOCK_TYPES)
    assert (dequantized(matrix).reshape(-1) == np.array(wanted).astype(np.float32)).all()
