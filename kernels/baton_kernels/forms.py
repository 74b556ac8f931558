"""What a packed matrix is: dense on a product path, or integers with scales. The first bytes of a packed matrix say it.

Integer products have no rounding order, so one class serves every machine: docs/integers.md fixes the rest, that is how
activations become integers, and the order of the fp32 operations behind the sums. A matrix whose depth several ranks
may share is cut into segments, each with activation scales of its own, so that the number of ranks changes no bit."""

import struct
from collections.abc import Sequence
from ctypes import Structure, addressof, c_char, c_int8, c_int32, c_int64
from dataclasses import dataclass

import numpy as np

from baton_kernels.arrays import PATHS, U8, Array
from baton_kernels.library import KernelError, check, load

FORM_BYTES = 128
MAGIC = b"BATONMX\0"
SCHEMES = (*PATHS, "int8", "int4", "int8-groups", "int4-groups", "stack")
OFFSETS = ("none", "zero", "minimum")
SCALES = ("fp32", "fp16", "bf16")
DEEP = 64  # integer forms pad the inputs to a multiple of it, and a segment's length is one
PANEL = 32  # outputs that are packed together


class Header(Structure):
    """The same fields as in cpu/form.h, in the same order."""

    _fields_ = [
        ("magic", c_char * 8),
        ("n", c_int64),
        ("k", c_int64),
        ("bytes", c_int64),
        ("scheme", c_int32),
        ("group", c_int32),
        ("segments", c_int32),
        ("offset", c_int32),
        ("scale_type", c_int32),
        ("middle", c_int32),
        ("ordered", c_int32),
        ("tabled", c_int32),
        ("table", c_int8 * 16),
        ("parts", c_int64 * 3),
    ]


@dataclass(frozen=True, slots=True)
class MatrixForm:
    """The form of a matrix with n outputs and k inputs."""

    scheme: str  # fp32 | pairs | amx | int8 | int4 | int8-groups | int4-groups
    group: int = 0  # inputs that share a scale or, of int4, a small factor; 0: int8 has one scale per output
    segments: int = 1  # parts of k that are summed on their own and added as a balanced tree
    offset: str = "none"  # a grouped form's shift: an integer `zero` that is subtracted, or a `minimum` that is added
    scales: str = "fp32"  # type of a grouped form's scales and minima: fp32 | fp16 | bf16
    middle: int = 0  # the nibble that means 0, where there are no zeros
    table: tuple[int, ...] = ()  # sixteen int8 that nibbles are indices into; empty: a nibble is a number
    ordered: bool = False  # the inputs stand in an order of their own

    @property
    def dense(self) -> bool:
        return self.scheme in PATHS

    def header(self, n: int, k: int) -> Header:
        """Raises KernelError where the form does not fit the shape."""
        if self.scheme not in SCHEMES or self.offset not in OFFSETS or self.scales not in SCALES:
            raise KernelError(f"form: {self} is unknown")
        made = Header(
            n=n,
            k=k,
            scheme=SCHEMES.index(self.scheme),
            group=self.group,
            segments=self.segments,
            offset=OFFSETS.index(self.offset),
            scale_type=SCALES.index(self.scales),
            middle=self.middle,
            ordered=self.ordered,
            tabled=bool(self.table),
            table=(c_int8 * 16)(*self.table),
        )
        check(load().describe(addressof(made)))
        return made


def most_segments(k: int, group: int = 0) -> int:
    """How many segments a matrix of this depth has whose inputs several ranks may share."""
    unit = max(DEEP, group)
    return next(count for count in (8, 4, 2, 1) if k % (count * unit) == 0 or count == 1)


def shape_of(packed: Array) -> tuple[int, int]:
    """Outputs and inputs of a packed matrix. Raises KernelError if the array is none, or is cut short."""
    if packed.dtype != U8 or packed.ndim != 1 or packed.size < FORM_BYTES or not packed.flags.c_contiguous:
        raise KernelError(f"packed: is {packed.dtype} {packed.shape}, must be a packed matrix")
    magic, n, k, size = struct.unpack_from("<8sqqq", packed.data)
    if magic != MAGIC or size > packed.size:
        raise KernelError(f"packed: is no packed matrix, or has {packed.size} of {size} bytes")
    return n, k


def form_of(packed: Array) -> MatrixForm:
    """The form of a packed matrix that is no stack."""
    shape_of(packed)
    header = Header.from_buffer_copy(packed.data)
    return MatrixForm(
        scheme=SCHEMES[header.scheme],
        group=header.group,
        segments=header.segments,
        offset=OFFSETS[header.offset],
        scales=SCALES[header.scale_type],
        middle=header.middle,
        table=tuple(header.table) if header.tabled else (),
        ordered=bool(header.ordered),
    )


def stacked_bytes(sizes: Sequence[int]) -> int:
    """Size of a stack of matrices of these sizes."""
    return FORM_BYTES + sum(_whole(size) for size in sizes)


def stack(parts: Sequence[Array], out: Array) -> None:
    """Packed matrices over the same inputs -> one whose outputs are theirs, one after the other."""
    shapes = [shape_of(part) for part in parts]
    if not 1 <= len(parts) <= 3 or len({k for _, k in shapes}) != 1:
        raise KernelError(f"parts: shapes {shapes} are no stack of one to three matrices over the same inputs")
    at, places = FORM_BYTES, []
    for part in parts:
        places.append(at)
        out[at : at + part.size] = part
        at += _whole(part.size)
    header = Header(magic=MAGIC, n=sum(n for n, _ in shapes), k=shapes[0][1], bytes=at, scheme=SCHEMES.index("stack"))
    header.parts = (c_int64 * 3)(*places)
    out[: len(bytes(header))] = bytearray(header)


def parts(packed: Array) -> list[Array]:
    """The matrices of a stack; a matrix that is no stack is its only part."""
    shape_of(packed)
    header = Header.from_buffer_copy(packed.data)
    if SCHEMES[header.scheme] != "stack":
        return [packed]
    places = [place for place in header.parts if place]
    return [packed[a:b] for a, b in zip(places, (*places[1:], header.bytes), strict=True)]


def panels(packed: Array, chosen: Sequence[int], n: int) -> Array:
    """A packed matrix of n outputs that consists of these panels of another one, which is no stack."""
    _, k = shape_of(packed)
    header = Header.from_buffer_copy(packed.data)
    first = FORM_BYTES + (_whole(4 * k) if header.ordered else 0)
    size = (header.bytes - first) // -(-header.n // PANEL)
    header.n, header.bytes = n, first + size * len(chosen)
    places = [first + panel * size for panel in chosen]
    head = np.frombuffer(bytes(header).ljust(FORM_BYTES, b"\0"), U8)
    return np.concatenate([head, packed[FORM_BYTES:first], *(packed[place : place + size] for place in places)])


def _whole(size: int) -> int:
    return -(-size // 64) * 64
