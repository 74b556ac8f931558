"""Kernels on rows of activations: norms, sums with the residual, caps of logits, and clips."""

from baton_kernels.arrays import F32, Array, pointer, rank, writable
from baton_kernels.library import KernelError, check, load


def rmsnorm(x: Array, weight: Array, eps: float, out: Array) -> None:
    """out [rows, k] = x / sqrt(mean(x^2) + eps) * weight."""
    rows, k = rank("x", x, 2)
    check(
        load().rmsnorm(
            pointer("x", x, F32, (rows, k)),
            pointer("weight", weight, F32, (k,)),
            rows,
            k,
            eps,
            writable("out", out, F32, (rows, k)),
        )
    )


def rmsnorm_within(x: Array, weight: Array, first: int, eps: float) -> None:
    """Normalises columns `first` and following of x [rows, columns] in place, as many as the weight has."""
    (rows, columns), (k,) = rank("x", x, 2), weight.shape
    if not 0 <= first <= columns - k:
        raise KernelError(f"first: {first} and {k} columns behind it are not all of {columns}")
    check(
        load().rmsnorm_within(
            writable("x", x, F32, (rows, columns)) + 4 * first,
            pointer("weight", weight, F32, (k,)),
            rows,
            k,
            columns,
            eps,
        )
    )


def share_latent(qkv: Array, weight: Array, heads: int, dim: int, eps: float) -> None:
    """The only KV head of qkv [rows, (heads + 2) * dim] has a latent in its values, and zeros behind it. It is
    normalised there, and becomes what keys have behind each half of their rotated elements."""
    rows, _ = rank("qkv", qkv, 2)
    check(
        load().share_latent(
            writable("qkv", qkv, F32, (rows, (heads + 2) * dim)),
            pointer("weight", weight, F32, weight.shape),
            rows,
            heads,
            dim,
            len(weight),
            eps,
        )
    )


def layernorm(x: Array, weight: Array, bias: Array, eps: float, out: Array) -> None:
    """out [rows, k] = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias."""
    rows, k = rank("x", x, 2)
    check(
        load().layernorm(
            pointer("x", x, F32, (rows, k)),
            pointer("weight", weight, F32, (k,)),
            pointer("bias", bias, F32, (k,)),
            rows,
            k,
            eps,
            writable("out", out, F32, (rows, k)),
        )
    )


def add(x: Array, y: Array, *, norm: Array | None = None, eps: float = 0.0, factor: float = 1.0) -> None:
    """x [rows, k] += factor * y, which is normalised by RMSNorm before if `norm` is given."""
    rows, k = rank("x", x, 2)
    check(
        load().add(
            writable("x", x, F32, (rows, k)),
            pointer("y", y, F32, (rows, k)),
            None if norm is None else pointer("norm", norm, F32, (k,)),
            rows,
            k,
            eps,
            factor,
        )
    )


def cap(x: Array, limit: float) -> None:
    """x [rows, k] = limit * tanh(x / limit)."""
    rows, k = rank("x", x, 2)
    check(load().cap(writable("x", x, F32, (rows, k)), rows, k, limit))


def clip(x: Array, limit: float) -> None:
    """x [rows, k] = x brought into -limit .. limit; NaN stays NaN."""
    rows, k = rank("x", x, 2)
    check(load().clip(writable("x", x, F32, (rows, k)), rows, k, limit))
