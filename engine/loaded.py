"""A model opened for serving: weights mapped, identity proved, and what a pool of its pages must look like.

Both tiers begin with this. The page pool's memory belongs to whoever moves pages, so the runner is made afterwards,
over the memory that is handed in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import baton_kernels
from engine.cuda.device import find_gpu
from engine.identity import Identity, identify
from engine.model.drafts import check_draft
from engine.model.errors import ModelError
from engine.model.forward import Product
from engine.model.weights import Weights, open_weights
from engine.plan import Runner
from engine.runner import CpuRunner, PoolBuffer, layout_name, segments


class Engine(Runner, Protocol):
    """A runner whose threads somebody must end."""

    def close(self) -> None: ...


class LoadedModel(Protocol):
    """What both tiers know of a model, on whatever device it is computed."""

    @property
    def identity(self) -> Identity: ...
    @property
    def segments(self) -> tuple[tuple[int, int], ...]: ...
    @property
    def layout(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def context_tokens(self) -> int: ...

    def runner(
        self,
        memory: Any,  # of the page pool, on the device
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> Engine: ...


@dataclass(frozen=True, slots=True)
class CpuModel:
    weights: Weights
    identity: Identity
    page_tokens: int
    draft: Weights | None = None  # changes no token, so it is no part of the identity
    product: Product = baton_kernels.product

    @property
    def segments(self) -> tuple[tuple[int, int], ...]:
        """What a page holds: (layers, bytes of each), the model's and behind them its draft's."""
        return segments(self.weights, self.draft, self.page_tokens)

    @property
    def page_bytes(self) -> int:
        return sum(layers * size for layers, size in self.segments)

    @property
    def layout(self) -> str:
        return layout_name(self.weights, self.draft, self.page_tokens)

    @property
    def body(self) -> str:
        """What carries out the products."""
        return baton_kernels.chosen()[f"product.{self.weights.path}"]

    @property
    def context_tokens(self) -> int:
        return self.weights.config.context

    def runner(
        self,
        memory: PoolBuffer,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> CpuRunner:
        """Any batch is computed alike here, whatever `max_batch` is."""
        return CpuRunner(
            self.weights,
            draft=self.draft,
            pool_buffer=memory,
            page_tokens=self.page_tokens,
            threads=threads,
            cores=cores,
            layer_group=layer_group,
            product=self.product,
        )


def load_on(
    device: str, folder: Path, cache_folder: Path, *, product_path: str, page_tokens: int, draft: Path | None = None
) -> LoadedModel:
    if device == "cpu":
        return load_model(folder, cache_folder, product_path=product_path, page_tokens=page_tokens, draft=draft)
    found = find_gpu()
    if found.gpu is None or found.why_not:
        raise ModelError(
            "configuration", "device", f'"{device}" cannot be used: {found.why_not}', 'Set device = "cpu".'
        )
    from engine.cuda.loaded import load_on_gpu  # imports torch and triton, which take seconds

    return load_on_gpu(found.gpu, folder, cache_folder, product_path=product_path, page_tokens=page_tokens, draft=draft)


def load_model(
    folder: Path, cache_folder: Path, *, product_path: str, page_tokens: int, draft: Path | None = None
) -> CpuModel:
    weights = open_weights(folder, cache_folder, product_path=product_path)
    drafting = None if draft is None else _open_draft(draft, cache_folder, weights, folder)
    return CpuModel(weights, identify(weights), page_tokens, drafting)


def _open_draft(folder: Path, cache_folder: Path, model: Weights, model_folder: Path) -> Weights:
    """On the model's path if its weights allow."""
    check_draft(folder, model.config, model_folder)
    path = "auto" if model.path == "fp32" else model.path
    return open_weights(folder, cache_folder, product_path=path)
