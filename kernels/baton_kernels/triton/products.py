"""bf16 matrix products whose sums run in one order, whatever the number of rows.

Weights are the left operand of the matrix instruction (64 or 128 outputs), activations the right one: a step of few
rows pads to 16 rows, not 64, and streams weights at the speed of memory. Each output is one chain over k in
ascending steps of the instruction (16 elements each), in one accumulator, never split: the sizes of the tile, which
follow the number of rows, do not change that order. Tiles are loaded through tensor descriptors (TMA from sm_90 on)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from baton_kernels.library import KernelError
from baton_kernels.triton.activation import gate_up
from baton_kernels.triton.activation import reference as swiglu_reference
from baton_kernels.triton.launch import Launch, architecture, blocks, check, check_rank, run

SHAPES = (  # rows, n, k
    (1, 64, 64),
    (3, 96, 200),
    (17, 130, 64),
    (40, 72, 136),
    (70, 200, 264),
    (130, 128, 72),
)


@dataclass(frozen=True, slots=True)
class ProductConfig:
    """Sizes for one architecture and for calls of at most `rows` rows; no size may change a row's bits."""

    outputs: int
    rows: int
    depth: int  # elements of k that one turn of the loop multiplies
    warps: int
    stages: int


# Few rows: two programs fit on a multiprocessor, and a turn loads 16 KB of weights, because the cost of a turn keeps a
# program below its share of the memory's speed. Many rows: a tile must be large, because the second-level cache limits
# the speed of the matrix units.
_PLAIN = (
    ProductConfig(64, 16, 128, 4, 5),
    ProductConfig(64, 32, 128, 4, 4),
    ProductConfig(64, 64, 128, 4, 3),
    ProductConfig(64, 128, 64, 4, 4),
)
_GATED = (  # these programs hold two tiles of weights
    ProductConfig(64, 16, 64, 4, 5),
    ProductConfig(64, 32, 64, 4, 5),
    ProductConfig(64, 64, 64, 4, 4),
    ProductConfig(128, 128, 64, 8, 4),
)
_AMPERE = (ProductConfig(64, 16, 64, 4, 6), ProductConfig(64, 32, 64, 4, 5), ProductConfig(64, 64, 64, 8, 5))
CONFIGS = {
    80: (*_AMPERE, ProductConfig(128, 128, 64, 8, 4)),
    90: (*_PLAIN, ProductConfig(128, 256, 64, 8, 4)),
    100: (*_PLAIN, ProductConfig(128, 128, 64, 8, 4)),
}
CONFIGS_GATED = {80: (*_AMPERE, ProductConfig(64, 128, 64, 8, 4)), 90: _GATED, 100: _GATED}
INSTRUCTIONS = {
    80: ("mma.sync", "cp.async"),
    90: ("wgmma", "cp.async.bulk.tensor"),
    100: ("tcgen05.mma", "cp.async.bulk.tensor"),
}


def product(
    x: torch.Tensor,  # bf16 [rows, k]
    weight: torch.Tensor,  # bf16 [n, k]
    *,
    out: torch.Tensor,  # float32 or bf16 [rows, n]
    bias: torch.Tensor | None = None,  # float32 [n]
    residual: torch.Tensor | None = None,  # float32 [rows, n], may be out
) -> None:
    """out = x @ weight.T, then + bias, then + residual. k must be a multiple of 8 (rows of 16 bytes)."""
    run(list(launches(architecture(x), x, weight, out, bias, residual, gated=False)))


def product_gated(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> None:
    """SwiGLU: weight bf16 [2n, k], gate first -> out bf16 [rows, n] = silu(x @ gate.T) * (x @ up.T)."""
    run(list(launches(architecture(x), x, weight, out, None, None, gated=True)))


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
) -> torch.Tensor:
    y = x.double() @ weight.double().T
    for more in (bias, residual):
        y = y if more is None else y + more.double()
    return y


def reference_gated(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return swiglu_reference(reference(x, weight))


@triton.jit(do_not_specialize=["rows"])  # one compiled program serves every batch
def _product(
    x,
    weight,
    bias,
    residual,
    out,
    rows,
    n,
    k,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
    BIAS: tl.constexpr,
    RESIDUAL: tl.constexpr,
    ABREAST: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):
    tl.assume(k > 0)  # if the loop may run zero times, the compiler waits for each matrix instruction
    # Programs run down columns of ABREAST tiles of outputs, so that tiles in flight share weights and rows.
    row_tiles = tl.cdiv(rows, ROWS)
    column = tl.program_id(0) // (ABREAST * row_tiles)
    wide = tl.minimum(tl.cdiv(n, OUTPUTS) - column * ABREAST, ABREAST)
    inside = tl.program_id(0) % (ABREAST * row_tiles)
    output = (column * ABREAST + inside % wide) * OUTPUTS
    row = inside // wide * ROWS
    o = output + tl.arange(0, OUTPUTS)
    r = row + tl.arange(0, ROWS)
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    acc_up = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for at in range(0, k, BLOCK_K):
        if DESCRIPTORS:
            w = weight.load([output, at])
            right = tl.trans(x.load([row, at]))
        else:
            inner = at + tl.arange(0, BLOCK_K)
            inside_k = (inner < k)[None, :]
            w = tl.load(
                weight + o[:, None].to(tl.int64) * k + inner[None, :], mask=(o < n)[:, None] & inside_k, other=0.0
            )
            own_x = x + r[:, None].to(tl.int64) * k + inner[None, :]
            right = tl.trans(tl.load(own_x, mask=(r < rows)[:, None] & inside_k, other=0.0))
        acc = tl.dot(w, right, acc)
        if GATED:
            if DESCRIPTORS:
                up = weight.load([n + output, at])
            else:
                own_up = weight + (n + o)[:, None].to(tl.int64) * k + inner[None, :]
                up = tl.load(own_up, mask=(o < n)[:, None] & inside_k, other=0.0)
            acc_up = tl.dot(up, right, acc_up)
    if GATED:
        acc = gate_up(acc, acc_up)
    if ROWS > 128:  # in halves: the whole tile and its bias and residual would not fit into the registers
        halves = tl.permute(tl.reshape(acc, [OUTPUTS, 2, ROWS // 2]), [0, 2, 1])
        first, second = tl.split(halves)
        half = row + tl.arange(0, ROWS // 2)
        _put(first, o, half, bias, residual, out, rows, n, BIAS, RESIDUAL)
        _put(second, o, half + ROWS // 2, bias, residual, out, rows, n, BIAS, RESIDUAL)
    else:
        _put(acc, o, r, bias, residual, out, rows, n, BIAS, RESIDUAL)


@triton.jit
def _put(acc, o, r, bias, residual, out, rows, n, BIAS: tl.constexpr, RESIDUAL: tl.constexpr):
    if BIAS:
        acc = acc + tl.load(bias + o, mask=o < n, other=0.0)[:, None]
    to = r[None, :].to(tl.int64) * n + o[:, None]
    wanted = (o < n)[:, None] & (r < rows)[None, :]
    if RESIDUAL:
        acc = acc + tl.load(residual + to, mask=wanted, other=0.0)
    tl.store(out + to, acc.to(out.dtype.element_ty), mask=wanted)


def launches(
    arch: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    *,
    gated: bool,
) -> Iterator[Launch]:
    rows, k = check_rank("x", x, 2)
    wide, _ = check_rank("weight", weight, 2)
    n = wide // 2 if gated else wide
    if k % 8 or k == 0 or n == 0 or (gated and wide % 2):
        raise KernelError(f"weight: {wide} x {k}; k must be a multiple of 8, gate and up equally many")
    if out.dtype not in (torch.float32, torch.bfloat16):
        raise KernelError(f"out: is {out.dtype}, must be float32 or bfloat16")
    check("x", x, torch.bfloat16, (rows, k))
    check("weight", weight, torch.bfloat16, (wide, k))
    check("out", out, out.dtype, (rows, n))
    if bias is not None:
        check("bias", bias, torch.float32, (n,))
    if residual is not None:
        check("residual", residual, torch.float32, (rows, n))
    if rows == 0:
        return
    config, descriptors = config_for(arch, rows, gated=gated), arch >= 90
    name = (
        "product_gated"
        if gated
        else f"product{' + bias' if bias is not None else ''}{' + residual' if residual is not None else ''}"
    )
    yield Launch(
        name=f"{name} {config.outputs}x{config.rows} -> {str(out.dtype).removeprefix('torch.')}",
        kernel=_product,
        grid=(blocks(n, config.outputs) * blocks(rows, config.rows), 1, 1),
        arguments={
            "x": TensorDescriptor.from_tensor(x, [config.rows, config.depth]) if descriptors else x,
            "weight": TensorDescriptor.from_tensor(weight, [config.outputs, config.depth]) if descriptors else weight,
            "bias": out if bias is None else bias, "residual": out if residual is None else residual, "out": out,
            "rows": rows, "n": n, "k": k,
        },
        constants={
            "OUTPUTS": config.outputs, "ROWS": config.rows, "BLOCK_K": config.depth, "GATED": gated,
            "BIAS": bias is not None,
            "RESIDUAL": residual is not None, "ABREAST": 8,
            "DESCRIPTORS": descriptors,
        },
        warps=config.warps,
        stages=config.stages,
        instructions=INSTRUCTIONS[arch],
        family="products",
    )  # fmt: skip


def config_for(arch: int, rows: int, *, gated: bool) -> ProductConfig:
    """The first configuration whose tile holds all rows, else the largest."""
    configs = (CONFIGS_GATED if gated else CONFIGS)[arch]
    return next((config for config in configs if rows <= config.rows), configs[-1])
