"""silu(gate) * up over rows that hold both halves, for models whose gated product is not fused (see
products.product_gated)."""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from baton_kernels.triton.launch import Launch, architecture, blocks, check, check_rank, run

SHAPES = ((1, 32), (3, 1000), (2, 4864))  # rows, width
BLOCK = 1024


def swiglu(both: torch.Tensor, *, out: torch.Tensor) -> None:
    """both float32 [rows, 2 * width], gate first -> out bf16 [rows, width]."""
    architecture(both)
    run(list(launches(both, out)))


def reference(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.double().chunk(2, dim=1)
    return torch.nn.functional.silu(gate) * up


@triton.jit
def gate_up(gate, up):
    """silu(gate) * up; `product_gated` uses it as its epilogue."""
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit
def _swiglu(both, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(both + row * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(both + row * 2 * width + width + at, mask=inside, other=0.0)
    tl.store(out + row * width + at, gate_up(gate, up).to(tl.bfloat16), mask=inside)


def launches(both: torch.Tensor, out: torch.Tensor) -> Iterator[Launch]:
    rows, width = check_rank("out", out, 2)
    check("both", both, torch.float32, (rows, 2 * width))
    check("out", out, torch.bfloat16, (rows, width))
    yield Launch(
        name="swiglu",
        kernel=_swiglu,
        grid=(rows, blocks(width, BLOCK), 1),
        arguments={"both": both, "out": out, "width": width},
        constants={"BLOCK": BLOCK},
    )
