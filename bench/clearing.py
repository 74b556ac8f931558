"""`python -m bench.clearing`: what it costs to clear pages that change their tenant, beside the steps that fill them.

A prompt is computed, then one token behind it, then the prompt's pages are cleared as they are for another tenant:
pass by pass, in turn, with the product's own pool and runner. Every figure is a median over the passes."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.command import parser_of, run, say
from bench.models import make_once
from bench.processor import processor
from engine.cpu.runner import CpuRunner
from engine.loading.loaded import load_model
from engine.step.batch import Remaining, chunks, decode_piece, pages_needed, prompt_piece
from engine.step.plan import Piece, Plan
from kvtransfer.pool import SharedPool
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling

GREEDY, GB = Sampling(), 1e9


def main() -> None:
    parser = parser_of("clearing", __doc__)
    parser.add_argument("--model", type=Path, help="model folder (default: random weights of a real shape)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt")
    parser.add_argument("--page", type=int, default=32, help="tokens of a page")
    parser.add_argument("--passes", type=int, default=7, help="measured passes")
    parser.add_argument("--threads", type=int, default=2, help="threads of the steps; clearing has one")
    run(parser, bench)


def bench(given: argparse.Namespace) -> dict[str, Any]:
    folder = given.model or make_once(default_cache_folder())
    found = measure(folder, prompt=given.prompt, page_tokens=given.page, passes=given.passes, threads=given.threads)
    for name, value in found.items():
        say(f"{name:28} {value:.6g}")
    return found | {"processor": processor()}


def measure(folder: Path, *, prompt: int, page_tokens: int, passes: int, threads: int) -> dict[str, float]:
    model = load_model(folder, default_cache_folder(), product_path="auto", page_tokens=page_tokens, threads=threads)
    pages = tuple(range(pages_needed(prompt + 1, page_tokens)))
    pool = SharedPool(model.shape, len(pages), populate=True)
    runner = model.runner(pool.buffer, threads=threads)
    tokens = tuple(number % model.weights.config.vocab for number in range(prompt))
    work: dict[str, Callable[[], object]] = {
        "prompt": lambda: compute(runner, tokens, pages, page_tokens),
        "token": lambda: runner.compute(Plan(1, (_token(prompt, pages, page_tokens),))),
        "clear": lambda: pool.clear(pages),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for number in range(passes + 1):  # the first pass warms up
        for name, do in work.items():
            began = time.perf_counter()
            do()
            if number:
                seconds[name].append(time.perf_counter() - began)
    medians = {name: median(values) for name, values in seconds.items()}
    runner.close()
    pool.close()
    cleared = len(pages) * model.shape.page_bytes
    return {
        "page_bytes": model.shape.page_bytes,
        "pages": len(pages),
        "clear_gb_per_second": cleared / medians["clear"] / GB,
        "clear_page_us": medians["clear"] / len(pages) * 1e6,
        "clear_ms": medians["clear"] * 1000,
        "prompt_ms": medians["prompt"] * 1000,
        "token_ms": medians["token"] * 1000,
        "clear_per_prompt": medians["clear"] / medians["prompt"],
        "clear_per_token": medians["clear"] / medians["token"],
    }


def compute(runner: CpuRunner, tokens: tuple[int, ...], pages: tuple[int, ...], page_tokens: int) -> None:
    """The whole prompt, in chunks of 256 tokens."""
    done = 0
    while done < len(tokens):
        (chunk,) = chunks([Remaining(0, len(tokens), done)], budget=256, chunk=256)
        runner.compute(Plan(1, (prompt_piece(chunk, tokens, pages, page_tokens=page_tokens, sampling=GREEDY),)))
        done += chunk.count


def _token(slot: int, pages: tuple[int, ...], page_tokens: int) -> Piece:
    return decode_piece(0, (1,), slot, pages, page_tokens=page_tokens, sampling=GREEDY, position=1)


if __name__ == "__main__":
    main()
