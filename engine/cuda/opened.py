"""A model opened for serving on a GPU: weights on the device, identity proved there. See engine/opened.py."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from baton_kernels.triton import PageShape
from engine.cuda.device import Gpu
from engine.cuda.identity import identify
from engine.cuda.products import Products, products_for
from engine.cuda.runner import CudaRunner, page_shape
from engine.cuda.weights import DeviceWeights, load_weights
from engine.identity import Identity
from engine.model.errors import ModelError
from engine.model.paths import VARIABLE

BODIES = ("eager", "graph")  # decode steps launch by launch, or as CUDA graphs: the same bits


@dataclass(frozen=True, slots=True)
class OpenedOnDevice:
    weights: DeviceWeights
    identity: Identity
    page_tokens: int
    products: Products
    body: str = "graph"

    @property
    def shape(self) -> PageShape:
        return page_shape(self.weights, self.page_tokens)

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        return ((self.shape.layers, self.shape.layer_bytes),)

    @property
    def page_bytes(self) -> int:
        return self.shape.page_bytes

    @property
    def layout(self) -> str:
        return self.shape.name

    @property
    def context_tokens(self) -> int:
        return self.weights.config.context

    def runner(
        self,
        memory: torch.Tensor,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> CudaRunner:
        """The host only launches: `threads` and `cores` are the CPU's."""
        return CudaRunner(
            self.weights,
            pool=memory,
            page_tokens=self.page_tokens,
            products=self.products,
            max_batch=max_batch,
            layer_group=layer_group,
            graphs=self.body == "graph",
        )


def open_on_gpu(gpu: Gpu, folder: Path, cache_folder: Path, *, product_path: str, page_tokens: int) -> OpenedOnDevice:
    path, body = gpu_path(product_path, gpu)
    device = torch.device("cuda", torch.cuda.current_device())
    return open_on_device(folder, cache_folder, device, path=path, page_tokens=page_tokens, body=body)


def open_on_device(
    folder: Path, cache_folder: Path, device: torch.device, *, path: str, page_tokens: int, body: str = "graph"
) -> OpenedOnDevice:
    weights = load_weights(folder, cache_folder, device)
    identity = identify(weights.model_hash, path, device)
    return OpenedOnDevice(weights, identity, page_tokens, products_for(path), body)


def gpu_path(product_path: str, gpu: Gpu, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Path and body: exact unless somebody says `fast`. The variable wins over the setting, as on a CPU."""
    said, place, field, wanted, body = environment.get(VARIABLE), "configuration", "product_path", product_path, ""
    if said:
        place, field = "environment", VARIABLE
        wanted, _, body = said.partition(":")
    if body and body not in BODIES:
        known = ", ".join(f"{wanted}:{one}" for one in BODIES)
        raise ModelError(place, field, f"a GPU has no body {body!r}", f"Use one of {known}.")
    if wanted in ("auto", gpu.exact_path):
        return gpu.exact_path, body or "graph"
    if wanted == "fast":
        return "fast", body or "graph"
    remedy = f"Use auto ({gpu.exact_path}, exact) or fast (the vendor's library, not exact)."
    raise ModelError(place, field, f"{wanted!r} is no path of {gpu.name}", remedy)
