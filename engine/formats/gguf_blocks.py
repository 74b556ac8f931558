"""The blocks of GGUF's quantized types in the canonical integer form.

A block of 32 has a scale d and, in some types, a minimum m; a block of 256 has eight or sixteen groups, whose small
integer scales are multiplied by one d. All of these products are exact in fp32, so the dequantized numbers are those of
every other reader."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers, MatrixForm
from engine.formats.mxfp4 import MXFP4, halved_powers

Bytes = NDArray[np.uint8]
# Values of IQ4_NL's nibbles.
_NONLINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_Read = Callable[[Bytes], tuple[NDArray[np.int8], NDArray[np.generic], NDArray[np.generic] | None]]


@dataclass(frozen=True, slots=True)
class BlockType:
    block: int  # elements
    size: int  # bytes
    form: MatrixForm
    read: _Read  # blocks [count, size] -> values [count, block], scales and minima [count, groups]

    def integers(self, raw: Bytes) -> Integers:
        """`raw`: rows of whole blocks."""
        rows = len(raw)
        values, scales, minima = self.read(raw.reshape(-1, self.size))
        kind = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16}[self.form.scales]
        return Integers(
            self.form,
            np.ascontiguousarray(values, np.int8).reshape(rows, -1),
            np.ascontiguousarray(scales, kind).reshape(rows, -1),
            None if minima is None else np.ascontiguousarray(minima, kind).reshape(rows, -1),
        )


def _halves(raw: Bytes, at: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16)


def _nibbles(raw: Bytes) -> Bytes:
    """Bytes of 32 nibbles: the low ones are the first sixteen elements."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _fifth_bits(raw: Bytes) -> Bytes:
    """Four bytes whose bit i is the fifth bit of element i."""
    bits: Bytes = np.unpackbits(raw, axis=1, bitorder="little") << np.uint8(4)
    return bits


def _q4_0(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], None]:
    return _nibbles(raw[:, 2:]).astype(np.int8), _halves(raw, 0), None


def _q4_1(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], NDArray[np.generic]]:
    return _nibbles(raw[:, 4:]).astype(np.int8), _halves(raw, 0), _halves(raw, 2)


def _q5_0(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], None]:
    return (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])).astype(np.int8) - 16, _halves(raw, 0), None


def _q5_1(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], NDArray[np.generic]]:
    return (_nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8])).astype(np.int8), _halves(raw, 0), _halves(raw, 2)


def _q8_0(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], None]:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8), _halves(raw, 0), None


def _k_scales(raw: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """d, dmin and twelve bytes that hold eight scales and eight minima of six bits each."""
    d, least = (_halves(raw, at).astype(np.float32) for at in (0, 2))
    packed = raw[:, 4:16]
    low, high, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([low & 63, (mixed & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([high & 63, (mixed >> 4) | (high >> 6 << 4)], axis=1)
    return d * scales.astype(np.float32), -least * minima.astype(np.float32)


def _k_nibbles(raw: Bytes) -> Bytes:
    """128 bytes: each 32 of them hold two groups, the first one in the low nibbles."""
    parts = raw.reshape(len(raw), 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(len(raw), 256)


def _q4_k(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], NDArray[np.generic]]:
    return _k_nibbles(raw[:, 16:]).astype(np.int8), *_k_scales(raw)


def _q5_k(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], NDArray[np.generic]]:
    bits = raw[:, 16:48].reshape(len(raw), 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1) & 1
    return (_k_nibbles(raw[:, 48:]) | bits.reshape(len(raw), 256) << 4).astype(np.int8), *_k_scales(raw)


def _q6_k(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], None]:
    low, high = raw[:, :128].reshape(-1, 2, 1, 64), raw[:, 128:192].reshape(-1, 2, 1, 32)
    nibbles = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    pairs = high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
    values = (nibbles | pairs << 4).astype(np.int8).reshape(-1, 256) - 32
    scales = _halves(raw, 208).astype(np.float32) * np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(
        np.float32
    )
    return values, scales, None


def _mxfp4(raw: Bytes) -> tuple[NDArray[np.int8], NDArray[np.generic], None]:
    return _nibbles(raw[:, 1:]).astype(np.int8), halved_powers(raw[:, :1]), None


BLOCK_TYPES = {
    "Q4_0": BlockType(32, 18, MatrixForm("int4-groups", group=32, scales="fp16", middle=8), _q4_0),
    "Q4_1": BlockType(32, 20, MatrixForm("int4-groups", group=32, scales="fp16", offset="minimum"), _q4_1),
    "Q5_0": BlockType(32, 22, MatrixForm("int8-groups", group=32, scales="fp16"), _q5_0),
    "Q5_1": BlockType(32, 24, MatrixForm("int8-groups", group=32, scales="fp16", offset="minimum"), _q5_1),
    "Q8_0": BlockType(32, 34, MatrixForm("int8-groups", group=32, scales="fp16"), _q8_0),
    "Q4_K": BlockType(256, 144, MatrixForm("int4-groups", group=32, offset="minimum"), _q4_k),
    "Q5_K": BlockType(256, 176, MatrixForm("int8-groups", group=32, offset="minimum"), _q5_k),
    "Q6_K": BlockType(256, 210, MatrixForm("int8-groups", group=16), _q6_k),
    "IQ4_NL": BlockType(32, 18, MatrixForm("int4-groups", group=32, scales="fp16", table=_NONLINEAR), _q4_0),
    "MXFP4": BlockType(32, 17, MXFP4, _mxfp4),
}
