"""The two ways to multiply on a GPU: our kernels, which add in one fixed order, and the vendor's library, which need
not.

`exact` is the default. `fast` may add in another order from batch to batch, so it is another numerics class."""

from typing import Protocol

import torch

from baton_kernels import triton as kernels


class Products(Protocol):
    def product(
        self,
        x: torch.Tensor,  # bf16 [rows, k]
        weight: torch.Tensor,  # bf16 [n, k]
        out: torch.Tensor,  # float32 [rows, n]
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,  # float32 [rows, n], may be out
    ) -> None: ...

    def gated(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        """weight [2n, k], gate first -> out bf16 [rows, n]."""


class Exact:
    def product(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> None:
        kernels.product(x, weight, out=out, bias=bias, residual=residual)

    def gated(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        kernels.product_gated(x, weight, out=out)


class Fast:
    def product(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ) -> None:
        y = torch.mm(x, weight.t()).float()
        if bias is not None:
            y += bias
        out.copy_(y if residual is None else y + residual)

    def gated(self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
        gate, up = torch.mm(x, weight.t()).float().chunk(2, dim=1)
        out.copy_(torch.nn.functional.silu(gate) * up)


def products_for(path: str) -> Products:
    return Fast() if path == "fast" else Exact()
