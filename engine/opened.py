"""A model opened for serving: weights mapped, identity proved, and what a pool of its pages must look like.

Both tiers begin with this. The page pool's memory belongs to whoever moves pages, so the runner is made afterwards,
over the memory that is handed in."""

from dataclasses import dataclass
from pathlib import Path

import baton_kernels
from engine.identity import Identity, identify
from engine.model.forward import Product
from engine.model.weights import Weights, open_weights
from engine.runner import CpuRunner, PoolBuffer, layer_bytes, layout_name


@dataclass(frozen=True, slots=True)
class OpenedModel:
    weights: Weights
    identity: Identity
    page_tokens: int

    @property
    def layers(self) -> int:
        return self.weights.config.layers

    @property
    def layer_bytes(self) -> int:
        """Of one page."""
        return layer_bytes(self.weights, self.page_tokens)

    @property
    def layout(self) -> str:
        return layout_name(self.weights, self.page_tokens)

    @property
    def context_tokens(self) -> int:
        return self.weights.config.context

    def runner(
        self,
        pool_buffer: PoolBuffer,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        product: Product = baton_kernels.product,
    ) -> CpuRunner:
        return CpuRunner(
            self.weights,
            pool_buffer=pool_buffer,
            page_tokens=self.page_tokens,
            threads=threads,
            cores=cores,
            layer_group=layer_group,
            product=product,
        )


def open_model(folder: Path, cache_folder: Path, *, product_path: str, page_tokens: int) -> OpenedModel:
    weights = open_weights(folder, cache_folder, product_path=product_path)
    return OpenedModel(weights, identify(weights), page_tokens)
