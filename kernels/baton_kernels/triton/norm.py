"""RMS norm of the residual stream, with the output of the last block added to the stream in the same pass.

One program computes one row and holds it whole in registers: the order of the sum of squares depends on the width
alone."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.triton.launch import Launch, architecture, check, check_rank, power_of_2, run

SHAPES = ((1, 64), (3, 896), (5, 1000), (2, 4096))  # rows, hidden


def rmsnorm(
    x: torch.Tensor,  # float32 [rows, hidden], the residual stream
    weight: torch.Tensor,  # float32 [hidden]
    eps: float,
    *,
    out: torch.Tensor,  # bf16 [rows, hidden]
    delta: torch.Tensor | None = None,  # float32 [rows, hidden], added to x first (x is changed)
) -> None:
    """out = x / sqrt(mean(x^2) + eps) * weight, rounded to bf16: the input of a product."""
    architecture(x)
    run(list(launches(x, weight, eps, out, delta)))


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    t = x.double()
    return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + eps) * weight.double()


@triton.jit
def _rmsnorm(x, weight, delta, out, eps, hidden, ADD: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, WIDTH)
    inside = at < hidden
    value = tl.load(x + row * hidden + at, mask=inside, other=0.0)
    if ADD:
        value = value + tl.load(delta + row * hidden + at, mask=inside, other=0.0)
        tl.store(x + row * hidden + at, value, mask=inside)
    mean = tl.sum(value * value, 0) / hidden
    factor = 1.0 / tl.sqrt_rn(mean + eps)
    tl.store(out + row * hidden + at, (value * factor * tl.load(weight + at, mask=inside)).to(tl.bfloat16), mask=inside)


def launches(
    x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor, delta: torch.Tensor | None
) -> Iterator[Launch]:
    rows, hidden = check_rank("x", x, 2)
    check("x", x, torch.float32, (rows, hidden))
    check("weight", weight, torch.float32, (hidden,))
    check("out", out, torch.bfloat16, (rows, hidden))
    if delta is not None:
        check("delta", delta, torch.float32, (rows, hidden))
    width = power_of_2(hidden)
    yield Launch(
        name=f"rmsnorm{'' if delta is None else ' + residual'} {hidden}",
        kernel=_rmsnorm,
        grid=(rows, 1, 1),
        arguments={
            "x": x,
            "weight": weight,
            "delta": x if delta is None else delta,
            "out": out,
            "eps": eps,
            "hidden": hidden,
        },
        constants={"ADD": delta is not None, "WIDTH": width},
        warps=max(1, min(16, width // 512)),
    )
