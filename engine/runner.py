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
from engine.drafter import Drafter
from engine.following import Following
from engine.model.forward import Forward, Pages, Product
from engine.model.rows import Limits, Rows
from engine.model.weights import Floats, Weights
from engine.plan import OnLayers, Plan, Result
from engine.sampling import sample

SMALL_BYTES = 128 * 1024  # less than this is not worth a message of its own

Written = Callable[[int], None]
PoolBuffer = bytearray | memoryview | mmap | NDArray[np.uint8]


class CpuRunner:
    ahead = False  # planning takes a thousandth of a step

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
    ) -> None:
        config = weights.config
        self.layers = sum(layers for layers, _ in segments(weights, draft, page_tokens))
        self.layout = layout_name(weights, draft, page_tokens)
        self.layer_bytes = layer_bytes(weights, page_tokens)  # the model's
        self.page_bytes = sum(layers * size for layers, size in segments(weights, draft, page_tokens))
        self._layer_group = layer_group
        self._row_bytes = self.layer_bytes // page_tokens
        pool = np.frombuffer(pool_buffer, np.uint8)
        if not pool.flags.writeable or len(pool) % self.page_bytes or not len(pool):
            raise ValueError(f"the pool has {len(pool)} bytes; give a writable one of whole pages of {self.page_bytes}")
        self._limits = Limits(config.vocab, config.context, len(pool) // self.page_bytes, page_tokens, self.page_bytes)
        self._pool = pool
        self._model_layers = config.layers
        self._forward = Forward(weights, Pages(pool, page_tokens, self.page_bytes, self.layer_bytes), product)
        self._drafter = None
        if draft is not None:
            behind = config.layers * self.layer_bytes
            pages = Pages(pool, page_tokens, self.page_bytes, layer_bytes(draft, page_tokens), first_byte=behind)
            self._drafter = Drafter(draft, pages, self._limits, first_layer=config.layers)
        self._following = Following()
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
        plan = self._following.settle(plan)
        rows = self._prepared(plan)
        drafter = self._drafter if any(piece.drafting for piece in plan.pieces) else None
        if drafter is not None:
            drafter.read(plan.pieces, on_layers)
        sampled = sample(plan.pieces, self._logits(rows, on_layers))
        self._following.remember(plan.pieces, sampled)
        if drafter is not None:
            return Result(sampled, drafter.propose(plan.pieces, sampled, on_layers))
        return Result(sampled, () if self._drafter is None else ((),) * len(plan.pieces))

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        logits = self._logits(self._prepared(plan), None).copy()
        ends = np.cumsum([piece.sampled for piece in plan.pieces])
        return tuple(np.split(logits, ends[:-1]))

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows tells together: a quarter, or as many as make a push worth its messages,
        but no more than a third, since the last group is what may be left when the first token is sampled."""
        worth = -(-SMALL_BYTES // (rows * self._row_bytes))
        layers = self._model_layers
        return self._layer_group or max(1, round(layers / 4), min(layers // 3, worth))

    def close(self) -> None:
        """Waits for the running plan."""
        self._thread.shutdown(wait=True)

    def _prepared(self, plan: Plan) -> Rows:
        """Refused before anything is touched, or ready to compute."""
        rows = Rows.of(plan.pieces, self._limits)
        self._copy(plan)
        return rows

    def _logits(self, rows: Rows, on_layers: OnLayers | None) -> Floats:
        groups = self._groups(on_layers, self.layer_group(len(rows.tokens)))
        return self._forward.logits(self._forward.hidden(rows, groups))

    def _copy(self, plan: Plan) -> None:
        for source, target in plan.copies:
            if not (0 <= source < self._limits.pages and 0 <= target < self._limits.pages):
                raise ValueError(f"step {plan.step} copies page {source} to {target} of a pool of {self._limits.pages}")
            baton_kernels.copy_page(self._pool, source * self.page_bytes, target * self.page_bytes, self.page_bytes)

    def _groups(self, on_layers: OnLayers | None, size: int) -> Written:
        """Turns 'this layer is written' into 'this group of layers is'."""
        last = self._model_layers - 1

        def written(layer: int) -> None:
            if on_layers is not None and ((layer + 1) % size == 0 or layer == last):
                first = layer // size * size
                on_layers(first, layer + 1 - first)

        return written


def layer_bytes(weights: Weights, page_tokens: int) -> int:
    """Of one page: keys and values of all KV heads."""
    return baton_kernels.layer_bytes(weights.path, page_tokens, weights.config.kv_heads, weights.config.head_dim)


def segments(weights: Weights, draft: Weights | None, page_tokens: int) -> tuple[tuple[int, int], ...]:
    """What a page holds, one after the other: (layers, bytes of each) of the model and of its draft."""
    return tuple((one.config.layers, layer_bytes(one, page_tokens)) for one in (weights, draft) if one is not None)


def layout_name(weights: Weights, draft: Weights | None, page_tokens: int) -> str:
    """Of the pages' inner tiles; equal names mean that bytes move as they are. What a draft wrote is of use only to
    the same draft, so its hash is part of the name."""
    tiles = baton_kernels.layout(weights.path, page_tokens, weights.config.head_dim)
    if draft is None:
        return tiles
    return f"{tiles}+{baton_kernels.layout(draft.path, page_tokens, draft.config.head_dim)}-{draft.model_hash[:16]}"


def _stay_on(*cores: int) -> None:
    """Pins the calling thread; without cores it runs anywhere."""
    if cores:
        os.sched_setaffinity(0, cores)
