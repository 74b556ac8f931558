"""`python -m bench.overhead`: what tracing every request and serving metrics cost, in tokens per second.

Two whole meshes run on this machine at the same time, one with tracing (every request sampled and exported) and
metrics, one with neither. Load goes to one of them at a time, in short turns, so that both see the same machine: the
figure is the median ratio of neighbouring turns, and `interval` says how sure it is. Two starts of the same mesh differ
by a few percent as long as they run, so both are started anew several times. A process that accepts and drops spans
stands for the collector.

It is measured twice: with a model of Qwen2.5-0.5B's shape, the smallest that people serve, for which the target holds;
and with the built-in model, `worst_case`, whose steps take about a millisecond, so that everything around them weighs
most. Speculation is off: it decides by measured times, and two meshes would compute different steps."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

from baton.client import Client
from baton.inference.v1 import inference_pb2 as pb
from bench.handoff import SHAPE, make_once, say
from bench.processor import processor
from bench.spread import Spread, median_interval
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.ports import free_address
from mesh.config.common_config import default_cache_folder

OBSERVED = {"metrics": "true", "gateway.tracing": "true", "gateway.trace_share": "1.0"}
BLIND = {"metrics": "false", "gateway.tracing": "false"}
WORKERS = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1", "decode.speculation": "off"}
TARGET = 0.98


@dataclass(frozen=True, slots=True)
class TurnLoad:
    requests: int  # requests of one turn
    concurrency: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Amount:
    """How long is measured."""

    starts: int  # so often both meshes are started anew
    pairs: int  # turns of each mesh that count, for each start
    load: TurnLoad


SERVED = Amount(3, 4, TurnLoad(8, 8, 24))
BUILT_IN = Amount(8, 15, TurnLoad(32, 16, 64))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.overhead", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument(
        "--starts", type=int, default=0, help=f"of both meshes; by default {SERVED.starts}, then {BUILT_IN.starts}"
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help=f"for each start; by default {SERVED.pairs}, then {BUILT_IN.pairs}"
    )
    arguments = parser.parse_args()
    served, built_in = (
        replace(amount, starts=arguments.starts or amount.starts, pairs=arguments.pairs or amount.pairs)
        for amount in (SERVED, BUILT_IN)
    )
    folder = make_once(default_cache_folder())
    report = asyncio.run(bench(served, model=str(folder)))
    report |= {"model": SHAPE, "worst_case": asyncio.run(bench(built_in, model=""))}
    if arguments.json:
        print(json.dumps(report))
    sys.exit(0 if report["tokens_per_second_ratio"] >= TARGET else 1)


async def bench(amount: Amount, *, model: str) -> dict[str, Any]:
    speeds = list[tuple[float, float]]()
    for number in range(amount.starts):
        speeds += await turns(amount.load, pairs=amount.pairs, model=model)
        ratio = median(observed / blind for observed, blind in speeds)
        say(f"start {number + 1} of {amount.starts}: {ratio:.3f} so far, in {len(speeds)} pairs")
    return summary(speeds, amount.load)


async def turns(load: TurnLoad, *, pairs: int, model: str) -> list[tuple[float, float]]:
    """(observed, blind) tokens per second of neighbouring turns of two meshes that are started for them."""
    async with AsyncExitStack() as stack:
        sink = await stack.enter_async_context(span_sink())
        observed = await mesh(stack, OBSERVED, model=model, otlp_endpoint=sink)
        blind = await mesh(stack, BLIND, model=model, otlp_endpoint="")
        for address in (observed, blind):  # warm-up: caches, speculation's measurements
            await tokens_per_second(address, load)
        speeds: list[tuple[float, float]] = []
        for number in range(pairs):
            first, second = (observed, blind) if number % 2 else (blind, observed)
            one, two = await tokens_per_second(first, load), await tokens_per_second(second, load)
            speeds.append((one, two) if number % 2 else (two, one))
            say(f"pair {number + 1} of {pairs}: {speeds[-1][0]:.0f} observed, {speeds[-1][1]:.0f} blind tokens/s")
    return speeds


def summary(speeds: Sequence[tuple[float, float]], load: TurnLoad) -> dict[str, Any]:
    """The report from pairs of (observed, blind) tokens per second."""
    ratio = Spread.of([observed / blind for observed, blind in speeds])
    low, high = median_interval([observed / blind for observed, blind in speeds])
    say(f"{processor()}: observed over blind {ratio}, 95% sure within {low:.3f} to {high:.3f}")
    return {
        "tokens_per_second_ratio": ratio.median,
        "lowest": ratio.low,
        "highest": ratio.high,
        "interval": [low, high],
        "ratio_of_medians": median(o for o, _ in speeds) / median(b for _, b in speeds),
        "observed_tokens_per_second": median(o for o, _ in speeds),
        "blind_tokens_per_second": median(b for _, b in speeds),
        "pairs": len(speeds),
        "requests": load.requests,
        "concurrency": load.concurrency,
        "max_tokens": load.max_tokens,
        "processor": processor(),
        "target": TARGET,
    }


async def mesh(stack: AsyncExitStack, settings: dict[str, str], *, model: str, otlp_endpoint: str) -> str:
    """Start a mesh of one prefill and one decode worker; returns its gRPC address."""
    settings = settings | WORKERS | ({"model": model} if model else {})
    gateway = await stack.enter_async_context(own_mesh(settings, otlp_endpoint=otlp_endpoint))
    return gateway.grpc_address


async def tokens_per_second(address: str, load: TurnLoad) -> float:
    """Stream `load.requests` answers, `load.concurrency` at a time."""
    numbers, tokens = iter(range(load.requests)), 0

    async def work(client: Client) -> None:
        nonlocal tokens
        for number in numbers:
            async for event in client.stream(request(number, load.max_tokens)):
                if event.HasField("delta"):
                    tokens += len(event.delta.token_ids)

    began = perf_counter()
    async with Client(address) as client:
        await asyncio.gather(*(work(client) for _ in range(load.concurrency)))
    return tokens / (perf_counter() - began)


def request(number: int, max_tokens: int) -> pb.GenerateRequest:
    """A greedy request without a stop: every turn computes equally many tokens."""
    message = pb.GenerateRequest(
        text=f"Request {number} asks: what happens when a worker dies in the middle of a page?"
    )
    message.stop.max_tokens = max_tokens
    message.stop.min_tokens = max_tokens
    message.sampling.temperature = 0.0
    return message


@asynccontextmanager
async def span_sink() -> AsyncIterator[str]:
    """A process that accepts OTLP spans and drops them; yields its endpoint."""
    address = free_address()
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.span_sink", address)
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        await process.wait()


if __name__ == "__main__":
    main()
