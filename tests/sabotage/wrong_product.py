"""A product whose sum depends on the batch, on a CPU and on a GPU: the sabotage `batch` gives it to a decode worker.

With more than one row it cuts the chain over k after a third. The model's identity stays the same: the worker claims to
compute as all others do, and only its tokens show that it does not."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import baton_kernels as kernels
from engine.loaded import CpuModel, LoadedModel

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
