"""The matrices of a model as they are packed: each knows its form before its values are read.

A packed file is laid out before anything is read, and values are read one matrix at a time, so that packing takes the
memory of the largest matrix. Matrices of one form that share their inputs become one; others become a stack."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from baton_kernels import Integers, MatrixForm
from engine.formats.errors import ModelError
from engine.formats.stored import MadeMatrix, Stored, StoredMatrix, Tensor, WidenedMatrix, widened
from engine.integers.forms import segments_of, target_form
from engine.integers.numbers import dequantized, widened_scales
from engine.integers.rounding import Rows, rounded

Array = NDArray[Any]
_DAMAGED = "The checkpoint is damaged; take another one."
_LARGEST_INTEGER = np.float32(255)  # size that scales multiply at most
_BEYOND_BF16 = np.float32(3.3961775e38)  # from here on a number rounds to infinity


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of n outputs and k inputs."""

    form: MatrixForm
    n: int
    k: int
    read: Callable[[], Array | Integers]  # dense: the checkpoint's numbers [n, k]

    @property
    def nbytes(self) -> int:
        return int(self.form.header(self.n, self.k).bytes)

    def ordered(self, rows: NDArray[np.int64] | None) -> "Matrix":
        """The same outputs, at each place the one whose number stands there; None: each at its own."""
        if rows is None:
            return self

        def read() -> Array | Integers:
            values = self.read()
            if not isinstance(values, Integers):
                return values[rows]
            parts = (values.scales, values.offsets, values.factors)
            scales, offsets, factors = (None if part is None else np.ascontiguousarray(part[rows]) for part in parts)
            assert scales is not None
            numbers = np.ascontiguousarray(values.values[rows])
            return replace(values, values=numbers, scales=scales, offsets=offsets, factors=factors)

        return replace(self, read=read)

    def pack(self, out: Array) -> None:
        values = self.read()
        if isinstance(values, Integers):
            baton_kernels.pack_integers(values, out)
        else:
            baton_kernels.pack(self.form.scheme, np.ascontiguousarray(values), out)


@dataclass(frozen=True, slots=True)
class Fusion:
    """Matrices over the same inputs whose outputs follow each other in one packed matrix."""

    parts: tuple[Matrix, ...]

    @classmethod
    def of(cls, matrices: Sequence[Matrix]) -> "Fusion":
        first = matrices[0]
        if all(each.form == first.form for each in matrices) and not first.form.ordered:
            return cls((_joined(matrices),))
        return cls(tuple(matrices))

    @property
    def nbytes(self) -> int:
        sizes = [part.nbytes for part in self.parts]
        return sizes[0] if len(sizes) == 1 else baton_kernels.stacked_bytes(sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.nbytes,)

    def pack(self, out: Array) -> None:
        if len(self.parts) == 1:
            return self.parts[0].pack(out)
        packed = [np.zeros(part.nbytes, np.uint8) for part in self.parts]
        for part, each in zip(self.parts, packed, strict=True):
            part.pack(each)
        baton_kernels.stack(packed, out)
        return None


@dataclass(frozen=True, slots=True)
class EqualMatrices:
    """Packed matrices of one size that lie one behind the other: those of a layer's experts."""

    each: tuple[Fusion, ...]

    @classmethod
    def of(cls, name: str, path: Path, fusions: Sequence[Fusion]) -> "EqualMatrices":
        """`name` and `path` are for the error where they differ."""
        if any(len(one.parts) > 1 or one.nbytes != fusions[0].nbytes for one in fusions):
            remedy = "Take a checkpoint in which all experts of a layer are quantized alike."
            raise ModelError(path, name, "belongs to experts whose matrices have different forms", remedy)
        return cls(tuple(fusions))

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.each), self.each[0].nbytes

    def pack(self, out: Array) -> None:
        for one, place in zip(self.each, out, strict=True):
            one.pack(place)


def checked(name: str, stored: Stored) -> Stored:
    """The same matrix; reading it raises ModelError where a number is NaN or infinite."""
    if isinstance(stored, WidenedMatrix):
        return _checked_rows(name, stored)
    if not isinstance(stored, StoredMatrix):
        return stored

    def read() -> Integers:
        matrix = stored.read()
        for scales in (matrix.scales, matrix.offsets if matrix.form.offset == "minimum" else None):
            with np.errstate(over="ignore"):
                damaged = scales is not None and not np.isfinite(widened_scales(scales) * _LARGEST_INTEGER).all()
            if damaged:
                raise ModelError(stored.path, name, "has scales that are not finite", _DAMAGED)
        return matrix

    return replace(stored, read=read)


def _checked_rows(name: str, stored: WidenedMatrix) -> WidenedMatrix:
    def rows(first: int, last: int) -> NDArray[np.float32]:
        numbers = stored.rows(first, last)
        if not np.abs(numbers).max(initial=0) < _BEYOND_BF16:
            row = first + int(np.argmin((np.abs(numbers) < _BEYOND_BF16).all(1)))
            raise ModelError(stored.path, name, f"has numbers in row {row} that are not finite in bf16", _DAMAGED)
        return numbers

    return replace(stored, rows=rows)


def as_it_stands(path: str, name: str, stored: Stored) -> Matrix:
    """A matrix of the checkpoint: a quantized one in its own form, a dense one on the product path. `name`: of the
    fused tensor that it belongs to."""
    if isinstance(stored, StoredMatrix):
        form = replace(stored.form, segments=segments_of(name, stored.shape[1], stored.form.group))
        return Matrix(form, *stored.shape, lambda: replace(stored.read(), form=form))
    if isinstance(stored, WidenedMatrix):
        return Matrix(MatrixForm(path), *stored.shape, lambda: stored.rows(0, stored.shape[0]))
    if isinstance(stored, MadeMatrix):
        return Matrix(MatrixForm(path), *stored.shape, stored.read)
    n, k = stored.shape
    return Matrix(MatrixForm(path), n, k, lambda: stored.values)


def dense_matrix(path: str, name: str, stored: Stored) -> Matrix:
    """A matrix of the checkpoint on the product path, widened if it is quantized."""
    if isinstance(stored, StoredMatrix):
        return Matrix(MatrixForm(path), *stored.shape, lambda: rows_of(stored)(0, stored.shape[0]))
    return as_it_stands(path, name, stored)


def quantized_matrix(target: str, name: str, stored: Stored) -> Matrix:
    """The same matrix, rounded to int8 or int4 when it is read. One that is quantized already stays as it is. `name`:
    of the fused tensor that it belongs to."""
    if isinstance(stored, StoredMatrix):
        return as_it_stands("", name, stored)
    n, k = stored.shape[:2]
    form = target_form(target, name, k)
    return Matrix(form, n, k, lambda: rounded(form, n, k, rows_of(stored)))


def rows_of(stored: Stored) -> Rows:
    """Reads rows of a matrix as fp32."""
    if isinstance(stored, Tensor):
        return lambda first, last: widened(replace(stored, values=stored.values[first:last]))
    if isinstance(stored, WidenedMatrix):
        return stored.rows
    numbers = stored.read() if isinstance(stored, MadeMatrix) else dequantized(stored.read())
    return lambda first, last: numbers[first:last]


def products_of(packed: Iterable[Array]) -> str:
    """How packed matrices are multiplied, in the words of docs/integers.md: the path of dense ones, or all forms."""
    return "+".join(
        sorted({_scheme(baton_kernels.form_of(part)) for one in packed for part in baton_kernels.parts(one)})
    )


def _scheme(form: MatrixForm) -> str:
    if form.dense:
        return form.scheme
    scheme = "w8a8" if form.scheme.startswith("int8") else "w4a8"
    return scheme if form.scheme in ("int8", "int4") else f"{scheme}-g{form.group}"


def _joined(matrices: Sequence[Matrix]) -> Matrix:
    if len(matrices) == 1:
        return matrices[0]

    def read() -> Array | Integers:
        values = [each.read() for each in matrices]
        integers = [each for each in values if isinstance(each, Integers)]
        if not integers:
            return np.concatenate([each for each in values if not isinstance(each, Integers)])
        return Integers(
            matrices[0].form,
            np.concatenate([each.values for each in integers]),
            np.concatenate([each.scales for each in integers]),
            _together([each.offsets for each in integers]),
            _together([each.factors for each in integers]),
        )

    return Matrix(matrices[0].form, sum(each.n for each in matrices), matrices[0].k, read)


def _together(arrays: Sequence[Array | None]) -> Array | None:
    given = [array for array in arrays if array is not None]
    return np.concatenate(given) if given else None
