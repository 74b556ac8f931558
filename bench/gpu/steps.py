"""Section `steps`: whole decode steps of an 8B-shaped model against their bandwidth floor, and the price of exactness.

The floor is the time to read all weights once and every request's keys and values, at the copy bandwidth measured just
before. Steps follow each other without waiting, as in a worker: step N + 1 is launched before N's tokens are read.
Steps with a draft model wait for each other. Such a step pays when it yields more tokens than plain steps in the same
time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch

from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, ours, show
from bench.gpu.random_model import DRY, LLAMA_8B, on_device
from engine.cuda.page_shapes import page_shapes
from engine.cuda.products import products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.weights import DeviceWeights
from engine.step.plan import Drafting, Piece, Plan
from mesh.messages.jobs import Sampling

PAGE_TOKENS = 16
CONTEXT, STEPS, WARM = 1024, 40, 8
POINTS = ((1, 0.80), (8, None), (64, 0.70))  # batch, least share of the floor
SAMPLING = Sampling(temperature=0.8, top_p=0.9, seed=1, max_tokens=1 << 20)
DRAFTS, DRAFT_LAYERS = 4, 2  # the draft has the model's width, so that it needs no other kernels


def measure(clock: Clock) -> None:
    bandwidth = clock.limits().bytes_per_second
    show(Figure("copy bandwidth", bandwidth / 1e9, "GB/s"))
    weights = on_device(LLAMA_8B if clock.real else DRY, clock.device)
    context, steps = (CONTEXT, STEPS) if clock.real else (20, 2)
    times: dict[tuple[int, str], float] = {}
    for batch, least in POINTS if clock.real else ((1, None), (2, None)):
        floor_ms = _floor_bytes(weights, batch, context) / bandwidth * 1000
        show(Figure(f"floor of a step, batch {batch}", floor_ms, "ms"))
        for name, path, graphs in (("graph", "exact", True), ("eager", "exact", False), ("fast", "fast", True)):
            with (
                ours(f"batch {batch}, {name}"),
                _runner(weights, batch, context + steps + WARM, path, graphs) as one,
            ):
                times[batch, name] = ms = _step_ms(one, batch, context, steps)
                show(Figure(f"step, batch {batch}, {name}", ms, "ms"))
        if (batch, "graph") in times:
            share = floor_ms / times[batch, "graph"]
            show(Figure(f"decode step, batch {batch}", share, "of its bandwidth floor", at_least=least))
        if {(batch, "graph"), (batch, "fast")} <= times.keys():
            price = times[batch, "graph"] / times[batch, "fast"]
            show(Figure(f"price of exactness, batch {batch}", price, "of the fast path's time"))
    draft = on_device(replace(weights.config, layers=DRAFT_LAYERS), clock.device, seed=2)
    for batch, _ in POINTS[:2] if clock.real else ((1, None),):
        with (
            ours(f"batch {batch}, with a draft model"),
            _runner(weights, batch, context + 2 * (steps + WARM), "exact", True, draft) as one,
        ):
            ms = _drafting_ms(one, batch, context, steps)
            show(Figure(f"step with {DRAFTS} drafts verified and proposed, batch {batch}", ms, "ms"))
            if (batch, "graph") in times:
                cost = ms / times[batch, "graph"]
                show(
                    Figure(f"step with {DRAFTS} drafts, batch {batch}", cost, f"plain steps; yields up to {DRAFTS + 1}")
                )
    del draft
    with ours("prefill"):
        _prefill(clock, weights)


def _floor_bytes(weights: DeviceWeights, batch: int, context: int) -> int:
    config = weights.config
    return weights.read_bytes + batch * context * config.layers * config.kv_heads * config.head_dim * 2 * 2


@contextmanager
def _runner(
    weights: DeviceWeights, batch: int, slots: int, path: str, graphs: bool, draft: DeviceWeights | None = None
) -> Iterator[CudaRunner]:
    pages = batch * -(-slots // PAGE_TOKENS)
    nbytes = pages * page_shapes(weights, draft, PAGE_TOKENS)[0].page_bytes
    pool = torch.randn(nbytes // 2, dtype=torch.bfloat16, device=weights.device).view(torch.uint8)
    runner = CudaRunner(
        weights,
        draft=draft,
        pool=pool,
        page_tokens=PAGE_TOKENS,
        products=products_for(path),
        max_batch=batch,
        graphs=graphs,
    )
    try:
        yield runner
    finally:
        runner.close()


def _step_ms(runner: CudaRunner, batch: int, context: int, steps: int) -> float:
    """Milliseconds of a plain step. The pages hold random numbers, so attention reads as much as for real text."""
    each = -(-(context + steps + WARM) // PAGE_TOKENS)

    def plan(number: int) -> Plan:
        pieces = (
            Piece(
                key,
                (0,) if number else (5,),
                context + number,
                tuple(range(key * each, key * each + each)),
                1,
                number,
                SAMPLING,
                follows=number > 0,
            )
            for key in range(batch)
        )
        return Plan(number, tuple(pieces))

    for number in range(WARM):
        launched = runner.launch(plan(number), layers=False)
    runner.finish(launched, None)
    began = perf_counter()
    for number in range(WARM, WARM + steps):
        launched = runner.launch(plan(number), layers=False)
    runner.finish(launched, None)
    return (perf_counter() - began) * 1000 / steps


def _drafting_ms(runner: CudaRunner, batch: int, context: int, steps: int) -> float:
    """Milliseconds of a step that verifies drafts and lets the draft model propose as many. The drafts are wrong, which
    does not change the time."""
    each = -(-(context + 2 * (steps + WARM)) // PAGE_TOKENS)

    def step(number: int) -> None:
        start = context + number
        pieces = (
            Piece(
                key,
                (5,) * (DRAFTS + 1),
                start,
                tuple(range(key * each, key * each + each)),
                DRAFTS + 1,
                number,
                SAMPLING,
                Drafting(start, (), DRAFTS),
            )
            for key in range(batch)
        )
        runner.compute(Plan(number, tuple(pieces)))

    for number in range(WARM):
        step(number)
    began = perf_counter()
    for number in range(WARM, WARM + steps):
        step(number)
    return (perf_counter() - began) * 1000 / steps


def _prefill(clock: Clock, weights: DeviceWeights) -> None:
    """Measures one prompt in one chunk, up to its first token."""
    tokens = 4096 if clock.real else 20
    peak = clock.limits().operations_per_second
    matrices = sum(
        tensor.numel() for layer in weights.layers for tensor in (layer.qkv, layer.o, layer.gate_up, layer.down)
    )
    attended = 2 * tokens * tokens * weights.config.layers * weights.config.heads * weights.config.head_dim
    with _runner(weights, 1, tokens, "exact", True) as runner:
        pages = tuple(range(-(-tokens // PAGE_TOKENS)))
        plan = Plan(0, (Piece(1, (5,) * tokens, 0, pages, 1, 0, SAMPLING),))
        runs = []
        for _ in range(4 if clock.real else 1):
            began = perf_counter()
            runner.finish(runner.launch(plan, layers=False), None)
            runs.append((perf_counter() - began) * 1000)
    show(Figure(f"prompt of {tokens} tokens", min(runs), "ms"))
    share = (2 * matrices * tokens + attended) / min(runs) * 1000 / peak
    show(Figure(f"prompt of {tokens} tokens", share, "of the matrix peak"))
