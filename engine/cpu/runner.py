"""Carries out plans on the CPU, in the worker's one compute thread.

Steps 4 and 7 of a request's life. The event loop hands a frozen plan in and gets a frozen result back. The thread
touches the plan, its scratch memory and the pages that the plan names, nothing else. Each group of layers is reported
to the event loop as soon as its keys and values are in the pages, and always before the result."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from mmap import mmap

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from engine.cpu.drafter import Drafter
from engine.model.forward import Forward, Product
from engine.model.page_memory import layer_bands, page_layout, page_memory
from engine.model.rows import RowLimits, Rows
from engine.model.weights import Floats, Weights
from engine.pool.page_layout import check_copies
from engine.step.following import FollowedTokens
from engine.step.layer_groups import LayerGroups, on_this_loop, unreported
from engine.step.logits import LogitAdjuster
from engine.step.plan import OnLayers, Plan, Result
from engine.step.reports import adapters_of, outputs

PoolBuffer = bytearray | memoryview | mmap | NDArray[np.uint8]


class CpuRunner:
    ahead = False  # planning takes a thousandth of a step, so a plan waits for the result of the one before it

    def __init__(
        self,
        weights: Weights,
        *,
        draft: Weights | None = None,
        pool_buffer: PoolBuffer,
        page_tokens: int,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        product: Product = baton_kernels.product,
        banded: bool = False,  # layers with windows and layers without lie in pages of their own
    ) -> None:
        config, bands = weights.config, layer_bands(weights, draft, banded=banded)
        layout = page_layout(weights, draft, page_tokens, bands)
        self.layers, self.shape, self.page_bytes = layout.layers, layout, layout.page_bytes
        self.layer_bytes = layout.segments[0].layer_bytes  # bytes of one of the model's layers in one page
        pool = np.frombuffer(pool_buffer, np.uint8)
        if not pool.flags.writeable or len(pool) % self.page_bytes or not len(pool):
            raise ValueError(f"the pool has {len(pool)} bytes; give a writable one of whole pages of {self.page_bytes}")
        self._pool, self._pages = pool, len(pool) // self.page_bytes
        sizes = config.vocab, config.context, self._pages, page_tokens, self.page_bytes
        self._limits = RowLimits(*sizes, bands.window, bands.count, bands.full)
        self._groups = LayerGroups(config.layers, self.layer_bytes // page_tokens, layer_group)
        self._forward = Forward(weights, page_memory(pool, layout, page_tokens, segment=0, bands=bands), product)
        self._drafter = None
        if draft is not None:
            pages = page_memory(pool, layout, page_tokens, segment=1)
            self._drafter = Drafter(draft, pages, self._limits, first_layer=config.layers)
        self._followed, self._adjuster = FollowedTokens(), LogitAdjuster()
        baton_kernels.set_threads(threads, cores)
        self._thread = ThreadPoolExecutor(1, "runner", _pin_thread, cores[:1])

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> asyncio.Future[Result]:
        """Computes the plan in the runner's thread: plans run one at a time, in the order in which they came.
        Cancelling the future does not stop a plan that runs."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, self._compute_timed, plan, on_this_loop(on_layers), loop.time)

    def _compute_timed(self, plan: Plan, on_layers: OnLayers | None, clock: Callable[[], float]) -> Result:
        return replace(self.compute(plan, on_layers), done_seconds=clock())

    def compute(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        """Computes the plan in the calling thread. No other plan may run meanwhile."""
        if not plan.pieces:
            self._copy_pages(plan)
            return Result(())
        plan = self._followed.fill_in(plan)
        rows = self._prepare(plan)
        drafter = self._drafter if any(piece.drafting for piece in plan.pieces) else None
        if drafter is not None:
            drafter.read(plan.pieces, on_layers)
        hidden = self._hidden(rows, on_layers)
        sampled, reports = outputs(plan.pieces, hidden, self._forward.logits, self._limits.vocab, self._adjuster)
        self._followed.remember(plan.pieces, sampled)
        if drafter is not None:
            return Result(sampled, drafter.propose(plan.pieces, sampled, on_layers), reports=reports)
        return Result(sampled, () if self._drafter is None else ((),) * len(plan.pieces), reports=reports)

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        logits = self._forward.logits(self._hidden(self._prepare(plan), None), adapters_of(plan.pieces)).copy()
        ends = np.cumsum([piece.sampled for piece in plan.pieces])
        return tuple(np.split(logits, ends[:-1]))

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows reports at once."""
        return self._groups.size(rows)

    def close(self) -> None:
        """Waits for the plan that runs and ends the thread."""
        self._thread.shutdown(wait=True)

    def _prepare(self, plan: Plan) -> Rows:
        """Checks the whole plan, then copies its pages: a refused plan has changed nothing."""
        rows = Rows.of(plan.pieces, self._limits)
        self._copy_pages(plan)
        return rows

    def _copy_pages(self, plan: Plan) -> None:
        check_copies(plan.copies, step=plan.step, pages=self._pages)
        size = self.page_bytes
        for source, target in plan.copies:
            baton_kernels.copy_page(self._pool, source * size, target * size, size)

    def _hidden(self, rows: Rows, on_layers: OnLayers | None) -> Floats:
        written = unreported if on_layers is None else self._groups.reporting(len(rows.tokens), on_layers)
        return self._forward.hidden(rows, written)


def _pin_thread(*cores: int) -> None:
    """Pins the calling thread to these cores; without cores it runs anywhere."""
    if cores:
        os.sched_setaffinity(0, cores)
