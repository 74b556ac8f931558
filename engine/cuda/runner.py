"""Carries out plans on a CUDA device. One thread launches steps, another waits for their results.

A plan's inputs go to the device as one block, the step runs as a graph or launch by launch, and its tokens come back by
an asynchronous copy. A piece may follow the step before (`Piece.follows`) and finds its token on the device, so step
N + 1 is launched before the host has read what step N yielded. The launching thread waits for the device only where a
draft proposes, because what the draft model reads depends on what the model sampled. A group of layers is reported when
the device has written it."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.cuda.drafter import DeviceDrafter, Proposing
from engine.cuda.forward import DeviceForward
from engine.cuda.page_shapes import page_layout, page_shapes
from engine.cuda.products import Products
from engine.cuda.step_stream import StepStream, wait
from engine.cuda.steps import CudaStep, Steps
from engine.cuda.weights import DeviceWeights
from engine.model.rows import RowLimits
from engine.model.weights import Floats
from engine.pool.page_layout import check_copies
from engine.step.layer_groups import LayerGroups, on_this_loop, unreported
from engine.step.plan import OnLayers, Plan, Result

Mark = torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A plan whose work was handed to the device."""

    step: CudaStep | None  # None: the plan only copies pages
    results: torch.Tensor  # what the step yields, on the host; valid once `done` is reached
    layers: tuple[tuple[int, int, Mark], ...]  # (first layer, layers, mark after which they are written)
    done: Mark
    proposing: Proposing | None = None


class CudaRunner:
    ahead = True  # the device would wait for the host between any two steps

    def __init__(
        self,
        weights: DeviceWeights,
        *,
        draft: DeviceWeights | None = None,
        pool: torch.Tensor,  # uint8, on the weights' device
        page_tokens: int,
        products: Products,
        max_batch: int = 64,  # sequences in a step that runs as a graph
        layer_group: int | None = None,
        graphs: bool = True,
    ) -> None:
        config, device, layout = weights.config, weights.device, page_layout(weights, draft, page_tokens)
        shape, *draft_shapes = page_shapes(weights, draft, page_tokens)
        if pool.device != device or not pool.numel():
            raise ValueError(f"the pool has {pool.numel()} bytes on {pool.device}; give whole pages on {device}")
        pages = shape.check_pool(pool)
        self.layers, self.shape, self.page_bytes = layout.layers, layout, layout.page_bytes
        self._groups = LayerGroups(config.layers, shape.layer_bytes // page_tokens, layer_group)
        self._limits = RowLimits(config.vocab, config.context, pages, page_tokens, self.page_bytes)
        self._pool = pool.view(pages, self.page_bytes)
        self._stream = StepStream(device)
        forward = DeviceForward(weights, pool, shape, products)
        self._steps = Steps(forward, self._limits, self._stream, max_batch=max_batch, graphs=graphs)
        self.graphs = self._steps.graphs
        self._drafter = None
        if draft is not None:
            forward = DeviceForward(draft, pool, draft_shapes[0], products)
            steps = Steps(forward, self._limits, self._stream, max_batch=max_batch, graphs=graphs)
            layers = config.layers, draft.config.layers
            self._drafter = DeviceDrafter(steps, self._limits, self._stream, layers=layers)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # weights and blocks were made on another stream
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._waiter = ThreadPoolExecutor(1, "waiter")

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> asyncio.Future[Result]:
        """Plans run in the order in which they came. Cancelling the future does not stop a step that was launched."""
        report = on_this_loop(on_layers)
        launched = self._launcher.submit(self.launch, plan, layers=report is not None)
        return asyncio.wrap_future(self._waiter.submit(self._finish_launched, launched, report))

    def compute(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        """Computes the plan in the calling thread. No other plan may run meanwhile."""
        return self.finish(self.launch(plan, layers=on_layers is not None), on_layers)

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        with self._stream.current():
            return self._steps.logits(plan.pieces)

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows reports at once."""
        return self._groups.size(rows)

    def close(self) -> None:
        """Waits for the plans that were handed over and ends both threads."""
        self._launcher.shutdown(wait=True)
        self._waiter.shutdown(wait=True)

    # ---- in the launcher's thread

    def launch(self, plan: Plan, *, layers: bool) -> Launched:
        """Hands the device all its work for this plan. `layers`: the caller wants each group of layers reported."""
        if any(piece.wanted for piece in plan.pieces):
            raise ValueError(f"step {plan.step} examines prompts, which a GPU worker does not; its Hello says so")
        drafter = self._drafter_of(plan)
        check_copies(plan.copies, step=plan.step, pages=self._limits.pages)
        with self._stream.current():
            for source, target in plan.copies:
                self._pool[target].copy_(self._pool[source])
            if not plan.pieces:
                return Launched(None, self._stream.host_words(0), (), self._stream.mark())
            marks = list[tuple[int, int, Mark]]()

            def add_mark(first: int, count: int) -> None:
                marks.append((first, count, self._stream.mark()))

            draft_is_through = drafter is not None and drafter.read(plan.pieces)
            if layers and drafter and draft_is_through:
                add_mark(*drafter.layers)
            written = self._groups.reporting(plan.rows, add_mark) if layers else unreported
            decodes = all(piece.sampled == len(piece.tokens) for piece in plan.pieces)
            step = self._steps.launch(plan.pieces, written, comes_again=decodes and not layers)
            results = self._steps.fetch(step)
            if drafter is None or draft_is_through:
                return Launched(step, results, tuple(marks), self._stream.mark())
            wait(self._stream.mark())
            proposing = drafter.propose(plan.pieces, step.read(results))
            if layers:
                add_mark(*drafter.layers)
            return Launched(step, results, tuple(marks), self._stream.mark(), proposing)

    def _drafter_of(self, plan: Plan) -> DeviceDrafter | None:
        if not any(piece.drafting for piece in plan.pieces):
            return None
        if self._drafter is None:
            raise ValueError(f"step {plan.step} names a draft model, but none is loaded; the worker must not plan it")
        return self._drafter

    # ---- in the waiter's thread

    def _finish_launched(self, launched: "Future[Launched]", on_layers: OnLayers | None) -> Result:
        return self.finish(launched.result(), on_layers)

    def finish(self, launched: Launched, on_layers: OnLayers | None) -> Result:
        """Waits until the device has carried out the step, reports its layers and reads what it yields."""
        for first, count, mark in launched.layers:
            wait(mark)
            if on_layers is not None:
                on_layers(first, count)
        wait(launched.done)
        if launched.step is None:
            return Result(())
        sampled = launched.step.read(launched.results)
        if launched.proposing is not None:
            return Result(sampled, launched.proposing.read())
        return Result(sampled, () if self._drafter is None else ((),) * len(sampled))
