"""`python -m bench.roofline`: how close the kernels and whole steps come to what this machine can do at most.

The limit of a point is max(bytes / read bandwidth, operations / raw peak), both measured around every single run of it.
A model of Qwen2.5-0.5B's shape with random weights in bf16; torch's own bf16 linears run side by side. Status 1 when a
target is missed or an operation ran a reference body. Ends with the command for the other kind of processor."""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import baton_kernels
from baton_kernels import layer
from bench.command import parser_of, run, say
from bench.models import make_once, path_beside
from bench.processor import processor
from bench.roofline_limits import MachineLimits, Meter, NotQuiet, slow_bodies
from bench.roofline_points import CONTEXT, RooflineEngine, kernel_points, torch_pair
from engine.model.weights import Weights, open_weights
from engine.model.work import ModelWork
from mesh.config.common_config import default_cache_folder

ROWS = {"decode_b1": 1, "decode_b8": 8, "decode_b32": 32, "prefill_512": 512, "prefill_2048": 2048}
SHARES = {"decode_b1": 0.80, "decode_b8": 0.65, "decode_b32": 0.65, "prefill_512": 0.25, "prefill_2048": 0.25}
INTEGER_SHARES = {"decode_b1_int8": 0.85, "decode_b1_int4": 0.75}  # targets of integers; at other points they have none
PREFILL_WITHOUT_TILES = 0.75
PRECISIONS = ("bf16", "int8", "int4")
TORCH = ("prefill_512", "prefill_2048", "decode_b1")
PYTHON_SHARE = 0.05


def main() -> None:
    parser = parser_of("roofline", __doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--product-path", default="auto", help="auto, amx or pairs")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=("bf16",), help="of the weights")
    parser.add_argument("--points", nargs="+", choices=tuple(ROWS), default=tuple(ROWS))
    parser.add_argument("--runs", type=int, default=5, help="valid runs of each point; figures are medians")
    parser.add_argument("--most", type=int, default=40, help="runs of each point before giving up")
    parser.add_argument("--no-kernels", action="store_true", help="only whole steps and torch")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--cache", type=Path, default=None, help="folder of the random model")
    run(parser, bench, NotQuiet)


def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    cache: Path = arguments.cache or default_cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder, report = make_once(cache), dict[str, Any](processor=processor(), threads=arguments.threads)
    report |= {"path": "", "steps": {}, "kernels": {}, "torch_ratio": {}}
    seen = dict[str, list[MachineLimits]]()
    for precision in arguments.precisions:
        quantize = "" if precision == "bf16" else precision
        path = path_beside(arguments.product_path, precision)
        weights = open_weights(folder, cache, product_path=path, quantize=quantize)
        baton_kernels.set_threads(arguments.threads)
        say(f"{processor()}, {arguments.threads} threads, {weights.products}, medians of {arguments.runs}")
        report["path"] = report["path"] or weights.path
        seen[precision] = points_of(weights, f"_{precision}" if quantize else "", report, arguments)
    report["bodies"] = baton_kernels.chosen()
    report["shares"] = {name: step["share"] for name, step in report["steps"].items()}
    report["limits"] = {
        precision: {
            "read_GBps": median(limit.read for limit in limits) / 1e9,
            "peak_GFLOPs": median(limit.peak for limit in limits) / 1e9,
            **(tile_limits(limits) if limits[0].loaded else {}),
        }
        for precision, limits in seen.items()
    }
    report["missed"] = misses(report)
    other = "an AMD with AVX512-BF16" if report["path"] == "amx" else "an Intel with AMX"
    say(f"limits: {report['limits']}; for {other} run there: python -m bench.roofline --json")
    return report


def tile_limits(seen: "list[MachineLimits]") -> dict[str, float]:
    return {
        "loaded_tiles_GFLOPs": median(limit.loaded for limit in seen) / 1e9,
        "eight_tiles_GFLOPs": median(limit.eight for limit in seen) / 1e9,
    }


def points_of(
    weights: Weights, suffix: str, report: dict[str, Any], arguments: argparse.Namespace
) -> "list[MachineLimits]":
    """Measures all points of one precision; returns the limits that were seen meanwhile."""
    meter, engine = Meter(weights.products), RooflineEngine(weights, arguments.threads)
    for point in arguments.points:
        name, decode, rows = point + suffix, point.startswith("decode"), ROWS[point]
        run = engine.decode(rows) if decode else engine.prefill(rows)
        model = ModelWork.of(weights)
        batch = model.step(sequences=rows, rows=1, start=CONTEXT - 1, sampled=1)
        work = batch if decode else model.step(rows=rows, start=0, sampled=1)
        report["steps"][name] = measure(meter, name, work, run, arguments)
        if not arguments.no_kernels:
            report["kernels"][name] = {
                kernel: measure(meter, f"  {kernel}", work, run, arguments)
                for kernel, work, run in kernel_points(weights, rows)
            }
        if name in TORCH and not arguments.no_torch:
            ratio = torch_ratio(weights, rows, arguments)
            report["torch_ratio"][name] = ratio
            say(f"  torch's time for the products: {ratio:.2f} of ours")
    if "decode_b1" in arguments.points and not suffix:
        report["python_share"] = python_ms(engine.decode(1)) / report["steps"]["decode_b1"]["milliseconds"]
        say(f"Python's share of decode_b1: {report['python_share']:.3f}")
    return meter.seen


def measure(meter: Meter, name: str, work: Any, run: Callable[[], object], arguments: argparse.Namespace) -> Any:
    figures = meter.point(work, run, runs=arguments.runs, most=arguments.most)
    seconds = median(figures.seconds)
    say(f"{name:<14} {seconds * 1e3:9.2f} ms  {work.nbytes / seconds / 1e9:6.1f} GB/s "
        f"{work.operations / seconds / 1e9:8.0f} GFLOP/s  share {figures.share:.2f} "
        f"({min(figures.shares):.2f} to {max(figures.shares):.2f}, {figures.dropped} dropped)")  # fmt: skip
    return {
        "bytes": work.nbytes,
        "operations": work.operations,
        "milliseconds": seconds * 1e3,
        "share": figures.share,
        "dropped": figures.dropped,
    }


def torch_ratio(weights: Weights, rows: int, arguments: argparse.Namespace) -> float:
    """torch's time over ours: the median of pairs that ran next to each other."""
    import torch

    torch.set_num_threads(arguments.threads)
    ours, theirs = torch_pair(weights, rows)
    ours(), theirs()
    return median(timed(theirs) / timed(ours) for _ in range(arguments.runs))


def python_ms(step: Callable[[], object]) -> float:
    """Milliseconds of a step in which no kernel runs, with caches as cold as real steps leave them."""

    def outside() -> float:
        busy = layer.busy_seconds()
        return timed(step) - (layer.busy_seconds() - busy)

    return median(outside() for _ in range(15)) * 1e3


def timed(run: Callable[[], object]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def misses(report: dict[str, Any]) -> list[str]:
    missed = [f"a reference body ran: {line}" for line in slow_bodies(report["path"])]
    for name, share in report["shares"].items():
        point, _, precision = name.partition("_int")
        prefill = point.startswith("prefill")
        target = PREFILL_WITHOUT_TILES if prefill and report["path"] != "amx" else SHARES[point]
        if precision:
            target = INTEGER_SHARES.get(name, 0.0)
        if share < target:
            missed.append(f"{name}: {share:.2f} of the limit, target {target}")
    for name, ratio in report["torch_ratio"].items():
        enough = 1.2 if report["path"] == "amx" or name == "decode_b1" else 0.95
        if ratio < enough and not (name == "decode_b1" and report["shares"][name] >= 0.9):
            missed.append(f"{name}: products at {ratio:.2f} of torch's speed, target {enough}")
    if report.get("python_share", 0.0) > PYTHON_SHARE:
        missed.append(f"Python's share of decode_b1: {report['python_share']:.3f}, target {PYTHON_SHARE}")
    return missed


if __name__ == "__main__":
    main()
