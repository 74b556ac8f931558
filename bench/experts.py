"""`python -m bench.experts`: how close steps of a model with experts come to what this machine can do at most.

The model has the shape of a small Qwen3-MoE, 8 of 64 experts for each row, with random weights in bf16. The limit of a
point is max(bytes / read bandwidth, operations / raw peak); the bytes of experts are those that kernels read. Each run
has other tokens, so that it chooses other experts. Status 1 when a target is missed.

`--alone` times the experts of the layers by themselves, on one thread and in its processor time, beside reading in the
same measure: for machines that have other work, on which no step has its own time."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from time import thread_time
from typing import Any

import numpy as np

import baton_kernels
from baton_kernels import limits
from bench.command import parser_of, run, say
from bench.models import make_once
from bench.processor import processor
from bench.roofline_limits import Meter, NotQuiet
from bench.roofline_points import CONTEXT, RooflineEngine
from engine.model.mixture import mixture_of
from engine.model.weights import Weights, open_weights
from engine.model.work import ModelWork, StepWork
from mesh.config.common_config import default_cache_folder

SHAPE = "qwen3-moe-small"
DECODE = {"decode_b1": 1, "decode_b8": 8, "decode_b32": 32}
PREFILL = {"prefill_512": 512}
_READ = 64 << 20  # bytes that are read beside each run of `alone`
SHARES = {"decode_b1": 0.75, "decode_b8": 0.75}


def main() -> None:
    parser = parser_of("experts", __doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="only the experts, on one thread, in processor time")
    parser.add_argument("--quantize", choices=("", "int8"), default="")
    parser.add_argument("--points", nargs="+", choices=(*DECODE, *PREFILL), default=(*DECODE, *PREFILL))
    parser.add_argument("--runs", type=int, default=5, help="valid runs of each point; figures are medians")
    parser.add_argument("--most", type=int, default=40, help="runs of each point before giving up")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the random model")
    run(parser, bench, NotQuiet)


def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    cache: Path = arguments.cache or default_cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    weights = open_weights(make_once(cache, SHAPE), cache, quantize=arguments.quantize)
    if arguments.alone:
        return alone(weights, max(20, arguments.runs))
    engine, model, meter = RooflineEngine(weights, arguments.threads), ModelWork.of(weights), Meter(weights.products)
    baton_kernels.set_threads(arguments.threads)
    say(f"{processor()}, {arguments.threads} threads, {weights.products}, medians of {arguments.runs}")
    report: dict[str, Any] = {"processor": processor(), "threads": arguments.threads, "steps": {}, "missed": []}
    for name in arguments.points:
        rows = (DECODE | PREFILL)[name]
        if name in DECODE:
            work = model.step(sequences=rows, rows=1, start=CONTEXT - 1, sampled=1)
            runs = [engine.decode(rows, first) for first in range(0, 32 * rows, rows)]
        else:
            work, runs = model.step(rows=rows, start=0, sampled=1), [engine.prefill(rows)]
        report["steps"][name] = step = _measured(meter, model, work, runs, arguments)
        say(f"{name:<12} {step['milliseconds']:8.2f} ms, {step['bytes'] / 1e6:6.0f} MB, share {step['share']:.2f} "
            f"({step['least']:.2f} to {step['most']:.2f}, {step['dropped']} dropped)")  # fmt: skip
        if step["share"] < SHARES.get(name, 0.0):
            report["missed"].append(f"{name}: {step['share']:.2f} of the limit, target {SHARES[name]}")
    return report


def alone(weights: Weights, runs: int) -> dict[str, Any]:
    """Shares of the read bandwidth that the experts of a layer reach, for each number of rows: medians over `runs`."""
    baton_kernels.set_threads(1)
    mixtures = [mixture for layer in weights.layers if (mixture := mixture_of(layer, weights.config)) is not None]
    natives, memory, rng = [each.native() for each in mixtures], limits.aligned(_READ), np.random.default_rng(0)
    report: dict[str, Any] = {"processor": processor(), "threads": 1, "alone": {}}
    for native in natives:  # every expert is in memory before the first run is timed
        many = rng.standard_normal((256, weights.config.hidden)).astype(np.float32)
        baton_kernels.experts.run(many, native, np.empty_like(many))
    for rows in DECODE.values():
        shares = []
        for number in range(runs):
            x = rng.standard_normal((rows, weights.config.hidden)).astype(np.float32)
            read, began = baton_kernels.experts.bytes_read(), thread_time()
            baton_kernels.experts.run(x, natives[number % len(natives)], np.empty_like(x))
            seconds, moved = thread_time() - began, baton_kernels.experts.bytes_read() - read
            began = thread_time()
            limits.read_bytes_per_second(memory)
            shares.append((moved + mixtures[0].router.nbytes) / seconds * (thread_time() - began) / _READ)
        report["alone"][f"rows_{rows}"] = median(shares)
        say(f"experts alone, {rows:2} rows: share {median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})")
    return report


def _measured(
    meter: Meter, model: ModelWork, work: StepWork, runs: list[Callable[[], object]], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Times the runs in turn. The bytes of experts are those that all of them read on average."""
    turns, before = count(), baton_kernels.experts.bytes_read()
    for one in runs:
        one()
    experts = (baton_kernels.experts.bytes_read() - before) / len(runs)
    whole = replace(work, nbytes=work.nbytes - model.expert_bytes + experts)
    figures = meter.point(whole, lambda: runs[next(turns) % len(runs)](), runs=arguments.runs, most=arguments.most)
    return {
        "bytes": whole.nbytes,
        "operations": whole.operations,
        "milliseconds": median(figures.seconds) * 1e3,
        "share": figures.share,
        "least": min(figures.shares),
        "most": max(figures.shares),
        "dropped": figures.dropped,
    }


if __name__ == "__main__":
    main()
