"""Products that the sabotages `batch` and `scale` give to a decode worker: one whose sum depends on the batch, on a CPU
and on a GPU, and one with a wrong scale.

The first cuts the chain over k after a third when it has more than one row. The model's identity stays the same: the
worker claims to compute as all others do, and only its tokens show that it does not."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.loading.loaded import CpuModel, LoadedModel

if TYPE_CHECKING:
    import torch

    from engine.cuda.products import Products

Floats = NDArray[np.float32]


def with_wrong_product(model: LoadedModel) -> LoadedModel:
    if isinstance(model, CpuModel):
        return replace(model, product=split_by_batch)
    from engine.cuda.loaded import CudaModel  # imports torch and triton

    assert isinstance(model, CudaModel)
    return replace(model, products=SplitOnDevice(model.products))


def split_by_batch(
    x: Floats,
    packed: NDArray[np.uint8],
    out: Floats,
    bias: Floats | None = None,
    residual: Floats | None = None,
) -> None:
    if len(x) == 1:
        kernels.product(x, packed, out, bias, residual)
        return
    low, high, third = x.copy(), x.copy(), x.shape[1] // 3
    low[:, third:], high[:, :third] = 0.0, 0.0
    parts = np.empty_like(out), np.empty_like(out)
    kernels.product(low, packed, parts[0])
    kernels.product(high, packed, parts[1], bias, residual)
    np.add(*parts, out=out)


def with_wrong_scale(model: LoadedModel) -> LoadedModel:
    assert isinstance(model, CpuModel)
    return replace(model, product=doubled_scale)


def doubled_scale(
    x: Floats,
    packed: NDArray[np.uint8],
    out: Floats,
    bias: Floats | None = None,
    residual: Floats | None = None,
) -> None:
    """The first output of an integer form has twice its scale."""
    if kernels.form_of(packed).scheme in kernels.PATHS:
        kernels.product(x, packed, out, bias, residual)
        return
    product = np.empty_like(out)
    kernels.product(x, packed, product)
    product[:, 0] *= 2
    product += 0 if bias is None else bias
    np.add(product, 0 if residual is None else residual, out=out)


@dataclass(frozen=True, slots=True)
class SplitOnDevice:
    """Products of a GPU: right for one row, wrong for several."""

    right: "Products"

    def product(
        self,
        x: "torch.Tensor",
        weight: "torch.Tensor",
        out: "torch.Tensor",
        bias: "torch.Tensor | None" = None,
        residual: "torch.Tensor | None" = None,
    ) -> None:
        if len(x) == 1:
            self.right.product(x, weight, out, bias, residual)
            return
        low, high, third = x.clone(), x.clone(), x.shape[1] // 3
        low[:, third:], high[:, :third] = 0.0, 0.0
        part = out.new_empty(out.shape)
        self.right.product(low, weight, part)
        self.right.product(high, weight, out, bias, residual)  # the residual may be `out`
        out += part

    def gated(self, x: "torch.Tensor", weight: "torch.Tensor", out: "torch.Tensor") -> None:
        self.right.gated(x, weight, out)
