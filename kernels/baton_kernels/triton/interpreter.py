"""The matrix product of Triton's interpreter, in the order of the GPU kernels, and its language replaced once.

The interpreter runs the kernels on a CPU in tests and dry runs. Its own `tl.dot` calls numpy, numpy calls a BLAS
library, and a BLAS library picks its order of summation by the processor and by the number of rows: a row's bits then
follow the batch, whatever the kernel does. It also reads bf16 elements as integers. `install` replaces that product by
one chain per output that starts from the accumulator and takes k in ascending order.

The interpreter also replaces the functions of `triton.language` anew for every call of a kernel and puts them back
after it, which took a third of the tests' time. A process that interprets kernels compiles none, so `install` lets each
replacement stay."""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_CACHED_FLOATS = 16384  # products that the first-level cache holds


def dot(a: Floats, b: Floats, accumulator: Floats) -> Floats:
    """accumulator + a @ b, for a [m, k] and b [k, n]. Each step rounds the products and then the sums, element by
    element, so that an output's bits depend on neither m nor n."""
    total = np.array(accumulator, np.float32, order="C")
    columns, rows = np.ascontiguousarray(a.T)[:, :, None], np.ascontiguousarray(b)[:, None, :]
    together = max(1, _CACHED_FLOATS // total.size)  # multiplied in one call of numpy, added one after the other
    for first in range(0, len(rows), together):
        for products in columns[first : first + together] * rows[first : first + together]:
            total += products
    return total


class _Stays:
    """The scope of a replacement that nobody takes back."""

    def restore(self) -> None:
        pass


def install() -> None:
    """Replaces `tl.dot` of the interpreter in this process, and lets the interpreter's own replacements stay."""
    from triton.runtime import interpreter

    def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        return interpreter.TensorHandle(dot(_widened(a), _widened(b), d.data), tl.float32)

    interpreter.InterpreterBuilder.create_dot = create_dot
    replace: Callable[[Any], object] = interpreter._patch_lang
    replaced: set[frozenset[str]] = set()

    def replace_once(function: Any) -> _Stays:
        held = list(function.__globals__.values())
        languages = frozenset(one.__name__ for one in (tl, tl.core) if any(one is value for value in held))
        if languages not in replaced:
            replace(function)
            replaced.add(languages)
        return _Stays()

    interpreter._patch_lang = replace_once
    interpreter._get_np_dtype = _remembered(interpreter._get_np_dtype)


def _remembered(numpy_type: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function; it builds a table of all types at every call, and is called for every operation."""
    known: dict[str, Any] = {}

    def remembered(type: Any) -> Any:
        name = type.scalar.name if not type.scalar.is_ptr() else "pointer"
        if name not in known:
            known[name] = numpy_type(type)
        return known[name]

    return remembered


def _widened(tensor: Any) -> Floats:
    """The operand as float32; the interpreter keeps bf16 elements as their bits."""
    if tensor.dtype.scalar == tl.bfloat16:
        bits: NDArray[np.uint32] = tensor.data.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    assert tensor.dtype.scalar == tl.float32, f"the kernels multiply bf16 and float32, not {tensor.dtype.scalar}"
    return np.asarray(tensor.data, np.float32)
