"""A model loaded for serving: weights mapped, identity proved, and the form of a page of its pool.

Both tiers start with it. The memory of the page pool belongs to the part that moves pages, so the runner is made
afterwards, over the memory that the worker hands in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import baton_kernels
from engine.cpu.runner import CpuRunner, PoolBuffer
from engine.cuda.device import find_gpu
from engine.formats.errors import ModelError
from engine.formats.quantized import kv_of
from engine.model.drafts import check_draft
from engine.model.floor import CpuFloor, MeasuredFloor
from engine.model.forward import Product
from engine.model.page_memory import layer_bands, page_layout
from engine.model.paths import AUTO, AUTO_AMX
from engine.model.weights import Weights, open_weights
from engine.model.work import ModelWork
from engine.pool.bands import LayerBands
from engine.quantization.cached import in_four_bits
from engine.selftest.identity import Identity, identify
from engine.selftest.run import check_draft_kernels
from engine.step.plan import Runner
from mesh.messages.page_shape import PageShape


class ClosableRunner(Runner, Protocol):
    """A runner with threads of its own, which end when its worker closes it."""

    def close(self) -> None: ...


class LoadedModel(Protocol):
    """A model that is ready to serve, as both tiers see it on any device."""

    @property
    def identity(self) -> Identity: ...
    @property
    def shape(self) -> PageShape:
        """The form of a page of its pool: the layers of the model and, behind them, those of its draft."""

    @property
    def body(self) -> str:
        """Name of the instructions that carry the matrix products out."""

    @property
    def context_tokens(self) -> int: ...
    @property
    def draft_context_tokens(self) -> int:
        """Tokens of a request within which its draft can propose; without a draft, all."""

    @property
    def bands(self) -> LayerBands:
        """How its layers lie in pages."""

    @property
    def weights_bytes(self) -> int:
        """Memory that the weights take, the draft's included."""

    @property
    def floor(self) -> MeasuredFloor:
        """The least time of stages on this device."""

    def runner(
        self,
        memory: Any,  # the page pool's memory, on the device
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> ClosableRunner: ...


@dataclass(frozen=True, slots=True)
class CpuModel:
    weights: Weights
    identity: Identity
    page_tokens: int
    draft: Weights | None = None  # changes no token, so the identity does not contain it
    product: Product = baton_kernels.product
    banded: bool = False  # layers with windows and layers without lie in pages of their own

    @property
    def shape(self) -> PageShape:
        return page_layout(self.weights, self.draft, self.page_tokens, self.bands)

    @property
    def body(self) -> str:
        dense = self.weights.products in baton_kernels.PATHS
        return baton_kernels.chosen()[f"product.{self.weights.path if dense else 'integers.many'}"]

    @property
    def context_tokens(self) -> int:
        return self.weights.config.context

    @property
    def draft_context_tokens(self) -> int:
        return min(model.config.context for model in (self.weights, self.draft) if model is not None)

    @property
    def bands(self) -> LayerBands:
        return layer_bands(self.weights, self.draft, banded=self.banded)

    @property
    def weights_bytes(self) -> int:
        return sum(model.nbytes for model in (self.weights, self.draft) if model is not None)

    @property
    def floor(self) -> MeasuredFloor:
        return CpuFloor(ModelWork.of(self.weights), self.weights.products, self.weights.head)

    def runner(
        self,
        memory: PoolBuffer,
        *,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        max_batch: int = 64,
    ) -> CpuRunner:
        """`max_batch` is for GPUs: a CPU computes batches of every size alike."""
        return CpuRunner(
            self.weights,
            draft=self.draft,
            pool_buffer=memory,
            page_tokens=self.page_tokens,
            threads=threads,
            cores=cores,
            layer_group=layer_group,
            product=self.product,
            banded=self.banded,
        )


def load_on(
    device: str,
    folder: Path,
    cache_folder: Path,
    *,
    product_path: str,
    page_tokens: int,
    draft: Path | None = None,
    context_tokens: int = 0,
    threads: int = 0,
    quantize: str = "",
    kv_dtype: str = "auto",
    banded: bool = False,
) -> LoadedModel:
    """`context_tokens`: what a request may have at most; 0: as many as the model allows. `threads`: how many compute,
    so that the self-test divides its work as later steps do; 0: as many as before. `banded`: layers with windows and
    layers without lie in pages of their own, so that texts give the former back; GPUs compute no windows."""
    wanted: dict[str, Any] = {
        "product_path": product_path,
        "page_tokens": page_tokens,
        "draft": draft,
        "context_tokens": context_tokens,
    }
    if device == "cpu":
        wanted |= {"threads": threads, "quantize": quantize, "kv_dtype": kv_dtype, "banded": banded}
        return load_model(folder, cache_folder, **wanted)
    found = find_gpu()
    if found.gpu is None or found.why_not:
        raise ModelError(
            "configuration", "device", f'"{device}" cannot be used: {found.why_not}', 'Set device = "cpu".'
        )
    from engine.cuda.loaded import load_on_gpu  # imports torch and triton, which take seconds

    return load_on_gpu(found.gpu, folder, cache_folder, **wanted)


def load_model(
    folder: Path,
    cache_folder: Path,
    *,
    product_path: str,
    page_tokens: int,
    draft: Path | None = None,
    context_tokens: int = 0,
    threads: int = 0,
    quantize: str = "",
    kv_dtype: str = "auto",
    banded: bool = False,
) -> CpuModel:
    """`kv_dtype`: how pages hold keys and values, int8, fp8 or int4; auto: as the folder says, or as
    they are computed."""
    if threads:
        baton_kernels.set_threads(threads)
    kv = kv_of(folder) if kv_dtype == "auto" else kv_dtype
    opened, recipe = (in_four_bits(folder, cache_folder), "int8") if quantize == "int4" else (folder, quantize)
    weights = open_weights(
        opened, cache_folder, product_path=product_path, context_tokens=context_tokens, quantize=recipe, kv=kv
    )
    draft_weights = None if draft is None else _open_draft(draft, cache_folder, weights, folder, quantize)
    if draft_weights is not None:
        check_draft_kernels(draft_weights, page_tokens)
    return CpuModel(weights, identify(weights, page_tokens), page_tokens, draft_weights, banded=banded)


def _open_draft(folder: Path, cache_folder: Path, model: Weights, model_folder: Path, quantize: str) -> Weights:
    """Opens the draft on the model's product path, and in eight bits if the model is rounded. Beside a model in fp32 it
    has the path that its own weights choose."""
    check_draft(folder, model.config, model_folder)
    path = model.path
    if model.path == "fp32" or quantize:
        path = AUTO_AMX if model.path == "amx" else AUTO
    recipe = "int8" if quantize else ""
    return open_weights(folder, cache_folder, product_path=path, quantize=recipe, kv=model.kv)
