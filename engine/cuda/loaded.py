"""A model loaded for serving on a GPU: weights on the device, identity proved there. See `engine/loading/loaded.py`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.cuda.device import BODIES, Gpu
from engine.cuda.identity import identify
from engine.cuda.page_shapes import page_layout
from engine.cuda.products import Products, products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.weights import DeviceWeights, check_draft_on_gpu, load_weights
from engine.formats.errors import ModelError
from engine.model.drafts import check_draft
from engine.model.floor import NO_FLOOR, MeasuredFloor
from engine.model.paths import VARIABLE
from engine.pool.bands import ONE_BAND, LayerBands
from engine.selftest.identity import Identity
from mesh.messages.page_shape import PageShape


@dataclass(frozen=True, slots=True)
class CudaModel:
    weights: DeviceWeights
    identity: Identity
    page_tokens: int
    products: Products
    draft: DeviceWeights | None = None  # changes no token, so the identity does not contain it
    body: str = "graph"

    @property
    def shape(self) -> PageShape:
        return page_layout(self.weights, self.draft, self.page_tokens)

    @property
    def context_tokens(self) -> int:
        return self.weights.config.context

    @property
    def draft_context_tokens(self) -> int:
        return self.context_tokens  # a draft with a shorter context is refused on a GPU

    @property
    def bands(self) -> LayerBands:
        return ONE_BAND  # windows that hide a token are refused on a GPU

    @property
    def weights_bytes(self) -> int:
        return sum(model.nbytes for model in (self.weights, self.draft) if model is not None)

    @property
    def floor(self) -> MeasuredFloor:
        return NO_FLOOR

    def runner(
        self,
        memory: torch.Tensor,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> CudaRunner:
        """`threads` and `cores` are for CPUs: here the host only launches."""
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
    gpu: Gpu,
    folder: Path,
    cache_folder: Path,
    *,
    product_path: str,
    page_tokens: int,
    draft: Path | None = None,
    context_tokens: int = 0,
) -> CudaModel:
    path, body = gpu_path(product_path, gpu)
    return load_on_device(
        folder,
        cache_folder,
        torch.device("cuda", torch.cuda.current_device()),
        path=path,
        page_tokens=page_tokens,
        draft=draft,
        body=body,
        context_tokens=context_tokens,
    )


def load_on_device(
    folder: Path,
    cache_folder: Path,
    device: torch.device,
    *,
    path: str,
    page_tokens: int,
    draft: Path | None = None,
    body: str = "graph",
    context_tokens: int = 0,
) -> CudaModel:
    weights = load_weights(folder, cache_folder, device, context_tokens=context_tokens)
    draft_weights = None if draft is None else _open_draft(draft, cache_folder, weights, folder)
    identity = identify(weights.model_hash, path, device)
    return CudaModel(weights, identity, page_tokens, products_for(path), draft_weights, body)


def _open_draft(folder: Path, cache_folder: Path, model: DeviceWeights, model_folder: Path) -> DeviceWeights:
    """Loads the draft onto the device of the model."""
    check_draft(folder, model.config, model_folder, padded=False)
    check_draft_on_gpu(folder)
    return load_weights(folder, cache_folder, model.device)


def gpu_path(product_path: str, gpu: Gpu, environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Path and body. The path is exact unless `fast` is chosen; the variable wins over the setting, as on a CPU."""
    place, field, wanted, body = "configuration", "product_path", product_path, ""
    if variable := environment.get(VARIABLE):
        place, field = "environment", VARIABLE
        wanted, _, body = variable.partition(":")
    if body and body not in BODIES:
        known = ", ".join(f"{wanted}:{one}" for one in BODIES)
        raise ModelError(place, field, f"a GPU has no body {body!r}", f"Use one of {known}.")
    if wanted in ("auto", gpu.exact_path):
        return gpu.exact_path, body or "graph"
    if wanted == "fast":
        return "fast", body or "graph"
    remedy = f"Use auto ({gpu.exact_path}, exact) or fast (the vendor's library, not exact)."
    raise ModelError(place, field, f"{wanted!r} is no path of {gpu.name}", remedy)
