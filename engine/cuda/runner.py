"""Carries out plans on a CUDA device. One thread launches, another waits for results: neither waits for the other,
but where drafts are proposed, since what the draft model reads depends on what the model sampled.

A plan's inputs go to the device as one block, the step runs as a graph or launch by launch, and its tokens come back by
an asynchronous copy. Since a piece may follow the step before (`Piece.follows`) and finds its token on the device, step
N + 1 is launched before anybody has read what step N yielded. Layers are told when the device has written them."""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from engine.cuda.drafter import DeviceDrafter, Proposing
from engine.cuda.forward import DeviceForward, Written
from engine.cuda.products import Products
from engine.cuda.shares import layout_name, page_shapes
from engine.cuda.step_stream import Lane, wait
from engine.cuda.steps import Step, Steps, nothing
from engine.cuda.weights import DeviceWeights
from engine.model.rows import Limits
from engine.model.weights import Floats
from engine.plan import OnLayers, Plan, Result

SMALL_BYTES = 128 * 1024  # less than this is not worth a message of its own

Mark = torch.cuda.Event | None


@dataclass(frozen=True, slots=True)
class Launched:
    """A plan that is on its way."""

    step: Step | None  # None: it only copied pages
    results: torch.Tensor  # on the host, valid once `done` is reached
    layers: tuple[tuple[int, int, Mark], ...]
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
        config, device = weights.config, weights.device
        shape, *drafts = page_shapes(weights, draft, page_tokens)
        if pool.device != device or not pool.numel():
            raise ValueError(f"the pool has {pool.numel()} bytes on {pool.device}; give whole pages on {device}")
        pages = shape.check_pool(pool)
        self.layers = shape.layers + sum(one.layers for one in drafts)
        self.layout, self.page_bytes = layout_name(weights, draft, page_tokens), shape.page_bytes
        self._layer_group, self._model_layers = layer_group, config.layers
        self._row_bytes = shape.layer_bytes // page_tokens
        self._limits = Limits(config.vocab, config.context, pages, page_tokens, shape.page_bytes)
        self._pool = pool.view(pages, shape.page_bytes)
        self._lane = Lane(device)
        forward = DeviceForward(weights, pool, shape, products)
        self._steps = Steps(forward, self._limits, self._lane, max_batch=max_batch, graphs=graphs)
        self.graphs = self._steps.graphs
        self._drafter = None
        if draft is not None:
            forward = DeviceForward(draft, pool, drafts[0], products)
            steps = Steps(forward, self._limits, self._lane, max_batch=max_batch, graphs=graphs)
            layers = config.layers, draft.config.layers
            self._drafter = DeviceDrafter(steps, self._limits, self._lane, layers=layers)
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # weights and blocks were made on another stream
        self._launcher = ThreadPoolExecutor(1, "launcher")
        self._waiter = ThreadPoolExecutor(1, "waiter")

    def run(self, plan: Plan, on_layers: OnLayers | None = None) -> asyncio.Future[Result]:
        """Plans run in order; cancelling the future does not stop a step that was launched."""
        loop = asyncio.get_running_loop()
        tell: OnLayers | None = None
        if on_layers is not None:

            def tell(first: int, count: int) -> None:
                loop.call_soon_threadsafe(on_layers, first, count)

        launched = self._launcher.submit(self.launch, plan, layers=on_layers is not None)
        return asyncio.wrap_future(self._waiter.submit(self._finish_launched, launched, tell))

    def compute(self, plan: Plan, on_layers: OnLayers | None = None) -> Result:
        """The step itself, in the calling thread; not while another plan runs."""
        return self.finish(self.launch(plan, layers=on_layers is not None), on_layers)

    def compute_logits(self, plan: Plan) -> tuple[Floats, ...]:
        """For tests and inspection: the logits of each piece's sampled rows, [sampled, vocab]."""
        with self._lane.current():
            return self._steps.logits(plan.pieces)

    def layer_group(self, rows: int) -> int:
        """Layers that a step of so many rows tells together: see the CPU's runner."""
        worth = -(-SMALL_BYTES // (rows * self._row_bytes))
        layers = self._model_layers
        return self._layer_group or max(1, round(layers / 4), min(layers // 3, worth))

    def close(self) -> None:
        """Waits for the steps that were handed over."""
        self._launcher.shutdown(wait=True)
        self._waiter.shutdown(wait=True)

    # ---- in the launcher's thread

    def launch(self, plan: Plan, *, layers: bool) -> Launched:
        """Everything that the device has to do for this plan, handed over. `layers`: somebody waits for them."""
        drafter = self._drafter_of(plan)
        self._check_copies(plan)
        with self._lane.current():
            for source, target in plan.copies:
                self._pool[target].copy_(self._pool[source])
            if not plan.pieces:
                return Launched(None, self._lane.host_words(0), (), self._lane.mark())
            marks = list[tuple[int, int, Mark]]()
            draft_is_through = drafter is not None and drafter.read(plan.pieces)
            if layers and drafter and draft_is_through:
                marks.append((*drafter.layers, self._lane.mark()))
            written = self._marking(marks, self.layer_group(plan.rows)) if layers else nothing
            decodes = all(piece.sampled == len(piece.tokens) for piece in plan.pieces)
            step = self._steps.launch(plan.pieces, written, comes_again=decodes and not layers)
            results = self._steps.fetch(step)
            if drafter is None or draft_is_through:
                return Launched(step, results, tuple(marks), self._lane.mark())
            wait(self._lane.mark())
            proposing = drafter.propose(plan.pieces, step.read(results))
            if layers:
                marks.append((*drafter.layers, self._lane.mark()))
            return Launched(step, results, tuple(marks), self._lane.mark(), proposing)

    def _drafter_of(self, plan: Plan) -> DeviceDrafter | None:
        if not any(piece.drafting for piece in plan.pieces):
            return None
        if self._drafter is None:
            raise ValueError(f"step {plan.step} names a draft model, and none was opened: the worker must not plan it")
        return self._drafter

    def _check_copies(self, plan: Plan) -> None:
        for source, target in plan.copies:
            if not (0 <= source < self._limits.pages and 0 <= target < self._limits.pages):
                raise ValueError(f"step {plan.step} copies page {source} to {target} of a pool of {self._limits.pages}")

    def _marking(self, marks: list[tuple[int, int, Mark]], size: int) -> Written:
        def written(layer: int) -> None:
            if (layer + 1) % size == 0 or layer + 1 == self._model_layers:
                first = layer // size * size
                marks.append((first, layer + 1 - first, self._lane.mark()))

        return written

    # ---- in the waiter's thread

    def _finish_launched(self, launched: "Future[Launched]", on_layers: OnLayers | None) -> Result:
        return self.finish(launched.result(), on_layers)

    def finish(self, launched: Launched, on_layers: OnLayers | None) -> Result:
        """What a step on its way yields, once the device is through with it."""
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
