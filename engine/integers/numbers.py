"""The numbers for which a matrix in its canonical integer form stands, as fp32.

The kernels compute them with the same operations when they gather rows of an embedding."""

import numpy as np
from numpy.typing import NDArray

from baton_kernels import Integers

Floats = NDArray[np.float32]


def dequantized(matrix: Integers) -> Floats:
    """[n, k] in the order of a row's elements."""
    form, values = matrix.form, matrix.values
    if form.table:
        values = np.array(form.table, np.int8)[values]
    exact = values.astype(np.float32) - np.float32(form.middle)
    if matrix.offsets is not None and form.offset != "minimum":
        exact -= np.repeat(matrix.offsets.astype(np.float32), form.group, axis=1)
    if matrix.factors is not None:
        exact *= np.repeat(matrix.factors.astype(np.float32), form.group, axis=1)
    scales = widened_scales(matrix.scales)
    exact *= scales[:, None] if scales.ndim == 1 else np.repeat(scales, form.group, axis=1)
    if form.offset == "minimum" and matrix.offsets is not None:
        exact += np.repeat(widened_scales(matrix.offsets), form.group, axis=1)
    if matrix.order is None:
        return exact
    back = np.empty_like(exact)
    back[:, matrix.order] = exact
    return back


def widened_scales(scales: NDArray[np.generic]) -> Floats:
    """Scales or minima as fp32; uint16 are bits of bf16."""
    if scales.dtype == np.uint16:
        return (scales.astype(np.uint32) << 16).view(np.float32)
    return scales.astype(np.float32)
