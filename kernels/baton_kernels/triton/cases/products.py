"""Matrix products with every epilogue."""

import torch

from baton_kernels.triton import products
from baton_kernels.triton.cases.agree import BF16, FP32, agree


def inputs(rows: int, n: int, k: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows * n + k)
    x, weight = (torch.randn(count, k, generator=draw).bfloat16().to(device) for count in (rows, n))
    return x, weight


def check(rows: int, n: int, k: int, device: str) -> None:
    x, weight = inputs(rows, n, k, device)
    draw = torch.Generator().manual_seed(1)
    bias, residual = torch.randn(n, generator=draw).to(device), torch.randn(rows, n, generator=draw).to(device)
    for with_bias, with_residual in ((None, None), (bias, None), (None, residual), (bias, residual)):
        out = torch.full((rows, n), torch.nan, device=device)
        products.product(x, weight, out=out, bias=with_bias, residual=with_residual)
        agree(out, products.reference(x, weight, with_bias, with_residual), FP32)
    expected = products.reference(x, weight, None, residual)
    products.product(x, weight, out=residual, residual=residual)
    agree(residual, expected, FP32)
    half = torch.full((rows, n), torch.nan, dtype=torch.bfloat16, device=device)
    products.product(x, weight, out=half)
    agree(half, products.reference(x, weight), BF16)


def check_gated(rows: int, n: int, k: int, device: str) -> None:
    x, weight = inputs(rows, 2 * n, k, device)
    out = torch.full((rows, n), torch.nan, dtype=torch.bfloat16, device=device)
    products.product_gated(x, weight, out=out)
    agree(out, products.reference_gated(x, weight), BF16)
