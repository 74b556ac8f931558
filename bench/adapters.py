"""`python -m bench.adapters`: decode steps with adapters beside the same steps without.

One batch of requests, a token for each of them in a step. In turn the step is computed for the model alone, and with 1,
8 and 32 different adapters of rank 8, which all requests share evenly; every projection has one. `ratio_to_base`: the
time of the step without adapters over the time with so many, the median over rounds. Status 1 when the target of the
most adapters is missed."""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench.command import missed, parser_of, run, say
from bench.models import make_once
from bench.processor import processor
from bench.spread import Spread, medians, ranges
from bench.turns import rounds
from engine.adapters.reading import read_adapter
from engine.cpu.runner import CpuRunner
from engine.model.page_memory import page_layout
from engine.model.weights import Weights, open_weights
from engine.step.adapted import AdapterWeights
from engine.step.plan import Piece, Plan
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling
from tests.harness.adapters import make_adapter

COUNTS, RANK, PAGE_TOKENS = (1, 8, 32), 8, 32
LEAST = {"32": 0.8}


def plan_of(adapters: list[AdapterWeights], batch: int, start: int) -> Plan:
    """One token for each request; `adapters`: none, or as many as take turns among the requests."""
    pages = -(-(start + 1) // PAGE_TOKENS)
    return Plan(
        0,
        tuple(
            Piece(
                number,
                (7 + number,),
                start,
                tuple(range(number * pages, (number + 1) * pages)),
                1,
                0,
                Sampling(max_tokens=1 << 20),
                adapter=adapters[number % len(adapters)] if adapters else None,
            )
            for number in range(batch)
        ),
    )


def open_runner(weights: Weights, batch: int, start: int, threads: int) -> CpuRunner:
    pages = batch * -(-(start + 1) // PAGE_TOKENS)
    pool = np.zeros(pages * page_layout(weights, None, PAGE_TOKENS).page_bytes, np.uint8)
    return CpuRunner(weights, pool_buffer=pool, page_tokens=PAGE_TOKENS, threads=threads)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    folder = Path(options.model) if options.model else make_once(default_cache_folder())
    weights = open_weights(folder, default_cache_folder(), quantize=options.quantize)
    with tempfile.TemporaryDirectory() as place:
        adapters = [
            read_adapter(
                make_adapter(Path(place, str(number)), folder, seed=number, rank=RANK, dtype=options.dtype, size=0.1),
                weights.config,
            )
            for number in range(max(COUNTS))
        ]
    runner = open_runner(weights, options.batch, options.start, options.threads)
    plans = {count: plan_of(adapters[:count], options.batch, options.start) for count in (0, *COUNTS)}

    async def measure(count: int) -> float:
        runner.compute(plans[count])
        begun = time.perf_counter()
        for _ in range(options.steps):
            runner.compute(plans[count])
        seconds: float = (time.perf_counter() - begun) / options.steps
        return seconds

    found: dict[int, list[float]] = {count: [] for count in plans}
    async for one in rounds(plans, measure, options.rounds):
        for count, seconds in one.items():
            found[count].append(seconds)
    runner.close()
    ratios = {str(count): Spread.ratio(found[0], found[count]) for count in COUNTS}
    for count in plans:
        say(f"{count:3} adapters: {Spread.of(found[count]).median * 1000:8.2f} ms for a step of {options.batch} rows")
    return {
        "ratio_to_base": medians(ratios),
        "spread": ranges(ratios),
        "base_step_ms": Spread.of(found[0]).median * 1000,
        "adapter_bytes": adapters[0].nbytes,
        "model": folder.name,
        "quantize": options.quantize,
        "processor": processor(),
        "missed": missed(medians(ratios), least=LEAST),
    }


def main() -> None:
    parser = parser_of("adapters", __doc__)
    parser.add_argument("--model", help="a model's folder; without it, random weights of the 0.5B shape")
    parser.add_argument("--quantize", default="", help="int8 or int4: round the model to it")
    parser.add_argument("--dtype", default="bf16", help="of the adapters: bf16 or fp32")
    parser.add_argument("--batch", type=int, default=32, help="requests of the batch")
    parser.add_argument("--start", type=int, default=255, help="tokens that each request has already")
    parser.add_argument("--steps", type=int, default=5, help="steps of one measurement")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    run(parser, bench)


if __name__ == "__main__":
    main()
