"""Carries out plans on the CPU: the worker's one compute thread.

Step 4 and 7 of a request's life. The event loop hands a frozen plan in and gets a frozen result back; the thread
touches the plan, its scratch memory and the pages that the plan names, nothing else. `on_layers` reaches the event
loop as soon as a group of layers is in the pages, and always before the result."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import numpy as np
from numpy.typing import NDArray

import baton_kernels
from engine.model.forward import Forward, Pages, Product
from engine.model.rows import Limits, Rows
from engine.model.weights import Floats, Weights
from engine.plan import OnLayers, Plan, Result
from engine.sampling import sample

SMALL_BYTES = 128 * 1024  # less than this is not worth a message of its own

Written = Callable[[int], None]
PoolBuffer = bytearray | memoryview | mmap | NDArray[np.uint8]


class CpuRunner:
    def __init__(
        self,
        weights: Weights,
        *,
        pool_buffer: PoolBuffer,
        page_tokens: int,
        threads: int,
        cores: tuple[int, ...] = (),
        layer_group: int | None = None,
        product: Product = baton_kernels.product,
    ) -> None:
        config = weights.config
        self.layers = config.layers
        self.layout = layout_name(weights, page_tokens)
        self.layer_bytes = layer_bytes(weights, page_tokens)
        self.page_bytes = self.layers * self.layer_bytes
        self._layer_group = layer_group
        self._row_bytes = self.layer_bytes // page_tokens
        pool = np.frombuffer(pool_buffer, np.uint8)
        if not pool.flags.writeable or len(pool) % self.page_bytes or not len(pool):
            raise ValueError(f"the pool has {len(pool)} bytes; give a writable one of whole pages of {self.page_bytes}")
        self._limits = Limits(config.vocab, config.context, len(pool) // self.page_bytes, page_tokens, self.page_bytes)
        self._pool = pool
        self._forward = Forward(weights, Pages(pool, page_tokens, self.page_bytes, self.layer_bytes), product)
        baton_kernels.set_threads(threads, cores)
        self._thread = ThreadPoolExecutor(1, "runner", _stay_on, cores[:1])

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> asyncio.Future[Result]:
        """Plans run one at a time, in order; cancelling the future does not stop a running one."""
        loop = asyncio.get_running_loop()
        if on_layers is None:
            return loop.run_in_executor(self._thread, self.compute, plan)

        def tell(first: int, count: int) -> None:
            loop.call_soon_threadsafe(on_layers, first, count)

        return loop.run_in_executor(self._thread, self.compute, plan, tell)

    def compute(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        """The step itself, in the calling thread; not while another plan runs."""
        if not plan.pieces:
            self._copy(plan)
            return Result(())
        logits = self._logits(plan, on_layers)
        return Result(sample(plan.pieces, logits))

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        logits = self._logits(plan, None).copy()
        ends = np.cumsum([piece.sampled for piece in plan.pieces])
        return tuple(np.split(logits, ends[:-1]))

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows tells together: a quarter, or as many as make a push worth its messages,
        but no more than a third, since the last group is what may be left when the first token is sampled."""
        worth = -(-SMALL_BYTES // (rows * self._row_bytes))
        return self._layer_group or max(1, round(self.layers / 4), min(self.layers // 3, worth))

    def close(self) -> None:
        """Waits for the running plan."""
        self._thread.shutdown(wait=True)

    def _logits(self, plan: Plan, on_layers: OnLayers | None) -> Floats:
        rows = Rows.of(plan.pieces, self._limits)
        self._copy(plan)
        return self._forward.logits(self._forward.hidden(rows, self._groups(on_layers, self.layer_group(plan.rows))))

    def _copy(self, plan: Plan) -> None:
        for source, target in plan.copies:
            if not (0 <= source < self._limits.pages and 0 <= target < self._limits.pages):
                raise ValueError(f"step {plan.step} copies page {source} to {target} of a pool of {self._limits.pages}")
            baton_kernels.copy_page(self._pool, source * self.page_bytes, target * self.page_bytes, self.page_bytes)

    def _groups(self, on_layers: OnLayers | None, size: int) -> Written:
        """Turns 'this layer is written' into 'this group of layers is'."""
        last = self.layers - 1

        def written(layer: int) -> None:
            if on_layers is not None and ((layer + 1) % size == 0 or layer == last):
                first = layer // size * size
                on_layers(first, layer + 1 - first)

        return written


def layer_bytes(weights: Weights, page_tokens: int) -> int:
    """Of one page: keys and values of all KV heads."""
    return baton_kernels.layer_bytes(weights.path, page_tokens, weights.config.kv_heads, weights.config.head_dim)


def layout_name(weights: Weights, page_tokens: int) -> str:
    """Of the pages' inner tiles; equal names mean that bytes move as they are."""
    return baton_kernels.layout(weights.path, page_tokens, weights.config.head_dim)


def _stay_on(*cores: int) -> None:
    """Pins the calling thread; without cores it runs anywhere."""
    if cores:
        os.sched_setaffinity(0, cores)
