"""A model opened for serving on a GPU: weights on the device, identity proved there. See engine/loaded.py."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.cuda.device import BODIES, Gpu
from engine.cuda.identity import identify
from engine.cuda.products import Products, products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.shares import layout_name, page_shapes
from engine.cuda.weights import DeviceWeights, check_draft_on_gpu, load_weights
from engine.identity import Identity
from engine.model.drafts import check_draft
from engine.model.errors import ModelError
from engine.model.paths import VARIABLE


@dataclass(frozen=True, slots=True)
class CudaModel:
    weights: DeviceWeights
    identity: Identity
    page_tokens: int
    products: Products
    draft: DeviceWeights | None = None  # changes no token, so it is no part of the identity
    body: str = "graph"

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """What a page holds: (layers, bytes of each), the model's and behind them its draft's."""
        return tuple((one.layers, one.layer_bytes) for one in page_shapes(self.weights, self.draft, self.page_tokens))

    @property
    def page_bytes(self) -> int:
        return sum(layers * size for layers, size in self.segments)

    @property
    def layout(self) -> str:
        return layout_name(self.weights, self.draft, self.page_tokens)

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
            draft=self.draft,
            pool=memory,
            page_tokens=self.page_tokens,
            products=self.products,
            max_batch=max_batch,
            layer_group=layer_group,
            graphs=self.body == "graph",
        )


def load_on_gpu(
    gpu: Gpu, folder: Path, cache_folder: Path, *, product_path: str, page_tokens: int, draft: Path | None = None
) -> CudaModel:
    path, body = gpu_path(product_path, gpu)
    device = torch.device("cuda", torch.cuda.current_device())
    return load_on_device(folder, cache_folder, device, path=path, page_tokens=page_tokens, draft=draft, body=body)


def load_on_device(
    folder: Path,
    cache_folder: Path,
    device: torch.device,
    *,
    path: str,
    page_tokens: int,
    draft: Path | None = None,
    body: str = "graph",
) -> CudaModel:
    weights = load_weights(folder, cache_folder, device)
    drafting = None if draft is None else _open_draft(draft, cache_folder, weights, folder)
    identity = identify(weights.model_hash, path, device)
    return CudaModel(weights, identity, page_tokens, products_for(path), drafting, body)


def _open_draft(folder: Path, cache_folder: Path, model: DeviceWeights, model_folder: Path) -> DeviceWeights:
    """On the same device and path as the model."""
    check_draft(folder, model.config, model_folder)
    check_draft_on_gpu(folder)
    return load_weights(folder, cache_folder, model.device)


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
