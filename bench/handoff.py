"""`python -m bench.handoff`: how much of a hand-off is hidden behind prefill, and what the mesh costs the first token.

A model of Qwen2.5-0.5B's shape with random weights, one prefill and one decode worker, every prompt new. Over shared
memory each run through the mesh stands between two runs of the engine alone (same process and threads, no push); over
TCP a token bucket lets little more through than prefill produces. Status 1 when a target is missed."""

import argparse
import asyncio
import json
import secrets
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

from bench.handoff_figures import (
    THROTTLE_FACTOR,
    Throttled,
    Unthrottled,
    keys,
    last_group_bytes,
    misses,
    pair_up,
    summarise,
    throttle_rate,
    throttled_bound_ms,
)
from bench.handoff_mesh import Mesh, Sent, running
from bench.processor import processor
from bench.spread import Spread
from cli.errors import MeshFailed
from engine.builtin import make_shape
from mesh.config.common_config import default_cache_folder

SHAPE = "qwen2.5-0.5b"
PROMPT_TOKENS = (32, 1024)
SHORT_TOKENS, SHORT_FACTOR = 256, 3  # short prompts take little time and vary more: they get this many times the pairs
WARM_RUNS = 3
UNLIMITED = 1e12  # bytes per second, until a rate is set


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.handoff", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--pairs", type=int, default=21, help="pairs of the longest prompt; short prompts get more")
    parser.add_argument("--threads", type=int, default=2, help="threads of each worker, and of the engine alone")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=PROMPT_TOKENS, help="lengths of the prompts in tokens"
    )
    parser.add_argument("--verbose", action="store_true", help="show the services' log lines and every pair")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out the mesh stops and its folders are removed
    try:
        figures = asyncio.run(bench(arguments))
    except MeshFailed as error:
        sys.exit(f"bench.handoff: {error}")
    missed = misses(figures)
    for line in missed:
        say(f"MISSED: {line}")
    if arguments.json:
        print(json.dumps(figures | {"missed": missed, "processor": processor(), "threads": arguments.threads}))
    sys.exit(1 if missed else 0)


async def bench(arguments: argparse.Namespace) -> dict[str, float | int]:
    say(f"{processor()}; threads of prefill, decode and the engine alone: {arguments.threads} each; shape {SHAPE}")
    say("each figure: median   (lowest to highest)")
    cache = default_cache_folder()
    model = await asyncio.to_thread(make_once, cache)
    runs, throttled = list[Unthrottled](), list[Throttled]()

    def on_line(name: str, line: str) -> None:
        if arguments.verbose:
            say(f"  {name}: {line}")

    start = partial(running, model, cache, threads=arguments.threads, on_line=on_line)
    async with start(transport="shm", bytes_per_second=None) as mesh:
        for length in arguments.prompts:
            runs.append(await shared_memory(mesh, length, pairs_of(length, arguments.pairs), arguments.verbose))
    async with start(transport="tcp", bytes_per_second=UNLIMITED) as mesh:
        for length in arguments.prompts:
            throttled.append(await tcp(mesh, length, arguments.pairs))
    return keys(runs, throttled)


async def shared_memory(mesh: Mesh, length: int, count: int, verbose: bool) -> Unthrottled:
    say(f"prompts of {length} tokens over shared memory, {count} interleaved pairs")
    for _ in range(WARM_RUNS):
        await mesh.single_ms(new_prompt(length))
        await mesh.send(new_prompt(length))
    single, sent = [await mesh.single_ms(new_prompt(length))], []
    for _ in range(count):
        sent.append(await mesh.send(new_prompt(length)))
        single.append(await mesh.single_ms(new_prompt(length)))
    pairs = pair_up([await mesh.result(run) for run in sent], single)
    if verbose:
        for pair in pairs:
            say(f"    {pair}")
    run = summarise(length, pairs)
    say(f"  hidden_share           {run.hidden_share}")
    say(f"  exposed_ms             {run.exposed_ms}")
    say(f"  single_ms              {run.single_ms}")
    say(f"  mesh_minus_single_ms   {run.mesh_minus_single_ms}   allowed {run.allowance_ms:.1f}")
    say(f"  push_slowdown          {run.push_slowdown}")
    return run


async def tcp(mesh: Mesh, length: int, count: int) -> Throttled:
    """The rate follows the machine: before each run the engine alone shows how fast it produces KV now."""
    say(f"prompts of {length} tokens over TCP at {THROTTLE_FACTOR} times what prefill produces, {count} runs")
    about = await mesh.about(length)
    last = last_group_bytes(
        length,
        chunk_tokens=about.chunk_tokens,
        page_tokens=about.page_tokens,
        layers=about.layers,
        layer_group=about.layer_group,
        layer_bytes=about.layer_bytes,
    )
    for _ in range(WARM_RUNS):
        await mesh.send(new_prompt(length))
    rates, sent = list[float](), list[Sent]()
    for _ in range(count):
        single_ms = await mesh.single_ms(new_prompt(length))
        rates.append(throttle_rate(length, about.token_bytes, single_ms))
        await mesh.throttle(rates[-1])
        sent.append(await mesh.send(new_prompt(length)))
    exposed_ms = [(await mesh.result(each)).exposed_ms for each in sent]
    bounds_ms = [throttled_bound_ms(last, rate) for rate in rates]
    run = Throttled(length, Spread.of(rates), Spread.of(exposed_ms), Spread.of(bounds_ms))
    say(f"  throttle_bytes_per_s   {run.bytes_per_second}")
    say(f"  throttled_exposed_ms   {run.exposed_ms}")
    say(f"  throttled_bound_ms     {run.bound_ms}")
    return run


def pairs_of(length: int, pairs: int) -> int:
    return pairs * SHORT_FACTOR if length <= SHORT_TOKENS else pairs


def new_prompt(length: int) -> list[int]:
    return list(secrets.token_bytes(length))


def make_once(cache: Path, shape: str = SHAPE) -> Path:
    """Folder of the random model, made on first use."""
    folder = cache / f"{shape}-bf16-random"
    if not folder.is_dir():
        say(f"making a random model of {shape}'s shape in {folder}, once")
        cache.mkdir(parents=True, exist_ok=True)
        aside = folder.with_suffix(".tmp")
        shutil.rmtree(aside, ignore_errors=True)
        make_shape(aside, shape=shape).rename(folder)
    return folder


if __name__ == "__main__":
    main()
