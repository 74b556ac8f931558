"""Cheap checks of numpy arguments. A kernel receives plain pointers, so Python checks type, shape and layout before.

A check takes less than a microsecond; every message names the argument."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton_kernels.library import KernelError

PATHS = ("fp32", "pairs", "amx")
PATH_INDEX = {name: index for index, name in enumerate(PATHS)}

F32 = np.dtype(np.float32)
F16 = np.dtype(np.float16)
I8 = np.dtype(np.int8)
I32 = np.dtype(np.int32)
I64 = np.dtype(np.int64)
U8 = np.dtype(np.uint8)
U16 = np.dtype(np.uint16)
U64 = np.dtype(np.uint64)

Array = NDArray[Any]


def path_index(path: str) -> int:
    try:
        return PATH_INDEX[path]
    except KeyError:
        raise KernelError(f"path: {path!r} is not one of {', '.join(PATHS)}") from None


def pointer(name: str, array: Array, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> int:
    """Address of a C-contiguous array of exactly this type and shape."""
    if array.dtype != dtype or array.shape != shape or not array.flags.c_contiguous:
        raise KernelError(_wrong(name, array, f"C-contiguous {dtype} {shape}"))
    address: int = array.__array_interface__["data"][0]
    return address


def writable(name: str, array: Array, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> int:
    if not array.flags.writeable:
        raise KernelError(f"{name}: is read-only but is written to")
    return pointer(name, array, dtype, shape)


def buffer(name: str, array: Array, nbytes: int) -> int:
    """Address of a flat uint8 array of at least `nbytes` bytes."""
    if array.dtype != U8 or array.ndim != 1 or array.size < nbytes or not array.flags.c_contiguous:
        raise KernelError(_wrong(name, array, f"C-contiguous uint8 of at least {nbytes} bytes"))
    address: int = array.__array_interface__["data"][0]
    return address


def rank(name: str, array: Array, dimensions: int) -> tuple[int, ...]:
    if array.ndim != dimensions:
        raise KernelError(f"{name}: has {array.ndim} dimensions, not {dimensions}")
    return array.shape


def _wrong(name: str, array: Array, wanted: str) -> str:
    layout = "" if array.flags.c_contiguous else ", not C-contiguous"
    return f"{name}: is {array.dtype} {array.shape}{layout}, must be {wanted}"
