"""Packed weights and the products on them: pack once, gather embedding rows, multiply, SwiGLU.

A product's output row depends on its input row alone: the chain runs over k in one order whatever else is computed."""

from baton_kernels.arrays import F16, F32, I32, U16, Array, buffer, path_index, pointer, rank, writable
from baton_kernels.library import KernelError, check, load

_SOURCES = {F32: 0, F16: 1, U16: 2}


def pack_bytes(path: str, n: int, k: int) -> int:
    """Size of a packed weight of n outputs and k inputs."""
    if n < 1 or k < 1:
        raise KernelError(f"n, k: {n} x {k} is no weight")
    size: int = load().pack_bytes(path_index(path), n, k)
    return size


def pack(path: str, weight: Array, out: Array) -> None:
    """weight [n, k] as float32, float16 or bfloat16 bits (uint16) -> out, `pack_bytes` of uint8."""
    n, k = rank("weight", weight, 2)
    source = _SOURCES.get(weight.dtype)
    if source is None:
        raise KernelError(f"weight: is {weight.dtype}, must be float32, float16 or uint16 (bfloat16 bits)")
    if not out.flags.writeable:
        raise KernelError("out: is read-only but is written to")
    address = buffer("out", out, pack_bytes(path, n, k))
    check(load().pack(path_index(path), source, pointer("weight", weight, weight.dtype, (n, k)), n, k, address))


def embed(path: str, packed: Array, tokens: Array, n: int, k: int, out: Array) -> None:
    """out [rows, k] = rows `tokens` of the packed weight [n, k]."""
    (rows,) = rank("tokens", tokens, 1)
    check(
        load().embed(
            path_index(path),
            buffer("packed", packed, pack_bytes(path, n, k)),
            pointer("tokens", tokens, I32, (rows,)),
            rows,
            n,
            k,
            writable("out", out, F32, (rows, k)),
        )
    )


def product(
    path: str, x: Array, packed: Array, n: int, out: Array, bias: Array | None = None, residual: Array | None = None
) -> None:
    """out [rows, n] = x [rows, k] times the packed weight, then + bias [n], then + residual [rows, n] (may be out)."""
    rows, k = rank("x", x, 2)
    check(
        load().product(
            path_index(path),
            pointer("x", x, F32, (rows, k)),
            buffer("packed", packed, pack_bytes(path, n, k)),
            rows,
            n,
            k,
            writable("out", out, F32, (rows, n)),
            None if bias is None else pointer("bias", bias, F32, (n,)),
            None if residual is None else pointer("residual", residual, F32, (rows, n)),
        )
    )


def gated(path: str, x: Array, packed_gate_up: Array, n: int, out: Array) -> None:
    """SwiGLU: out [rows, n] = silu(gate) * up, gate and up packed together as [2n, k], gate first."""
    rows, k = rank("x", x, 2)
    check(
        load().gated(
            path_index(path),
            pointer("x", x, F32, (rows, k)),
            buffer("packed_gate_up", packed_gate_up, pack_bytes(path, 2 * n, k)),
            rows,
            n,
            k,
            writable("out", out, F32, (rows, n)),
        )
    )
