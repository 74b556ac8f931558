"""`python -m bench.handoff`: how much of a hand-off is hidden behind prefill, and what the mesh costs the first token.

A model of Qwen2.5-0.5B's shape with random weights, one prefill and one decode worker, every prompt new. Over shared
memory each run through the mesh stands between two runs of the engine alone (same process and threads, no push); over
TCP a token bucket lets little more through than prefill produces. Status 1 when a target is missed."""

import argparse
import asyncio
import secrets
from functools import partial
from typing import Any

from bench.command import parser_of, run, say
from bench.handoff_figures import (
    THROTTLE_FACTOR,
    Spreads,
    allowance_ms,
    keys,
    last_group_bytes,
    misses,
    pair_up,
    summarise,
    throttle_rate,
    throttled_bound_ms,
)
from bench.handoff_mesh import Mesh, Sent, running
from bench.models import SHAPE, make_once
from bench.processor import processor
from bench.spread import Spread
from cli.errors import MeshFailed
from mesh.config.common_config import default_cache_folder

PROMPT_TOKENS = (32, 1024)
SHORT_TOKENS, SHORT_FACTOR = 256, 3  # short prompts take little time and vary more: they get this many times the pairs
WARM_RUNS = 3
UNLIMITED = 1e12  # bytes per second, until a rate is set


def main() -> None:
    parser = parser_of("handoff", __doc__)
    parser.add_argument("--pairs", type=int, default=21, help="pairs of the longest prompt; short prompts get more")
    parser.add_argument("--threads", type=int, default=2, help="threads of each worker, and of the engine alone")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=PROMPT_TOKENS, help="lengths of the prompts in tokens"
    )
    parser.add_argument("--verbose", action="store_true", help="show the services' log lines and every pair")
    run(parser, bench, MeshFailed)


async def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    say(f"{processor()}; threads of prefill, decode and the engine alone: {arguments.threads} each; shape {SHAPE}")
    say("each figure: median   (lowest to highest)")
    cache = default_cache_folder()
    model = await asyncio.to_thread(make_once, cache)
    runs, throttled = list[Spreads](), list[Spreads]()

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
    figures = keys(runs, throttled)
    return figures | {"missed": misses(figures), "processor": processor(), "threads": arguments.threads}


async def shared_memory(mesh: Mesh, length: int, count: int, verbose: bool) -> Spreads:
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
    spreads = summarise(pairs)
    tell(spreads)
    say(f"  allowed mesh_minus_single_ms: {allowance_ms(spreads['single_ms'].median):.1f}")
    return spreads


async def tcp(mesh: Mesh, length: int, count: int) -> Spreads:
    """The rate follows the machine: before each run the engine alone shows how fast it produces KV now."""
    say(f"prompts of {length} tokens over TCP at {THROTTLE_FACTOR} times what prefill produces, {count} runs")
    about = await mesh.about(length)
    last, token_bytes = (
        last_group_bytes(length, **about),
        about["layers"] * about["layer_bytes"] // about["page_tokens"],
    )
    for _ in range(WARM_RUNS):
        await mesh.send(new_prompt(length))
    rates, sent = list[float](), list[Sent]()
    for _ in range(count):
        single_ms = await mesh.single_ms(new_prompt(length))
        rates.append(throttle_rate(length, token_bytes, single_ms))
        await mesh.throttle(rates[-1])
        sent.append(await mesh.send(new_prompt(length)))
    exposed_ms = [(await mesh.result(each)).exposed_ms for each in sent]
    spreads = {
        "throttled_exposed_ms": Spread.of(exposed_ms),
        "throttled_bound_ms": Spread.of([throttled_bound_ms(last, rate) for rate in rates]),
        "throttle_bytes_per_s": Spread.of(rates),
    }
    tell(spreads)
    return spreads


def tell(spreads: Spreads) -> None:
    for name, spread in spreads.items():
        say(f"  {name:<22} {spread}")


def pairs_of(length: int, pairs: int) -> int:
    return pairs * SHORT_FACTOR if length <= SHORT_TOKENS else pairs


def new_prompt(length: int) -> list[int]:
    return list(secrets.token_bytes(length))


if __name__ == "__main__":
    main()
