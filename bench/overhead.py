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
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

from baton.client import Client
from baton.inference.v1 import inference_pb2 as pb
from bench.child import child
from bench.command import missed, parser_of, run, say
from bench.models import SHAPE, make_once
from bench.processor import processor
from bench.spread import Spread, median_interval
from bench.turns import rounds
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.ports import free_address
from mesh.config.common_config import default_cache_folder

OBSERVED = {"metrics": "true", "gateway.tracing": "true", "gateway.trace_share": "1.0"}
BLIND = {"metrics": "false", "gateway.tracing": "false"}
WORKERS = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1", "decode.speculation": "off"}
TARGET = 0.98


@dataclass(frozen=True, slots=True)
class Amount:
    """How long is measured, and with which load."""

    starts: int  # so often both meshes are started anew
    pairs: int  # turns of each mesh that count, for each start
    requests: int  # requests of one turn
    concurrency: int
    max_tokens: int


SERVED = Amount(3, 4, 8, 8, 24)
BUILT_IN = Amount(8, 15, 32, 16, 64)


def main() -> None:
    parser = parser_of("overhead", __doc__)
    parser.add_argument(
        "--starts", type=int, default=0, help=f"of both meshes; by default {SERVED.starts}, then {BUILT_IN.starts}"
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help=f"for each start; by default {SERVED.pairs}, then {BUILT_IN.pairs}"
    )
    run(parser, bench)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    served, built_in = (
        replace(amount, starts=options.starts or amount.starts, pairs=options.pairs or amount.pairs)
        for amount in (SERVED, BUILT_IN)
    )
    report = await measure(served, {"model": str(make_once(default_cache_folder()))})
    report |= {"model": SHAPE, "worst_case": await measure(built_in, {})}
    return report | {"missed": missed(report, least={"tokens_per_second_ratio": TARGET})}


async def measure(amount: Amount, model: dict[str, str]) -> dict[str, Any]:
    speeds = list[tuple[float, float]]()
    for number in range(amount.starts):
        speeds += await turns(amount, model)
        ratio = median(observed / blind for observed, blind in speeds)
        say(f"start {number + 1} of {amount.starts}: {ratio:.3f} so far, in {len(speeds)} pairs")
    return summary(speeds, amount)


async def turns(load: Amount, model: dict[str, str]) -> list[tuple[float, float]]:
    """(observed, blind) tokens per second of neighbouring turns of two meshes that are started for them."""
    address, common, speeds = free_address(), WORKERS | model, list[tuple[float, float]]()
    async with (
        child(sys.executable, "-m", "bench.span_sink", address, ends_by=signal.SIGTERM),
        own_mesh(OBSERVED | common, otlp_endpoint=f"http://{address}") as observed,
        own_mesh(BLIND | common) as blind,
    ):
        sides = {"blind": blind.grpc_address, "observed": observed.grpc_address}
        for name in ("observed", "blind"):  # warm-up: caches, speculation's measurements
            await tokens_per_second(sides[name], load)
        async for found in rounds(sides, lambda name: tokens_per_second(sides[name], load), load.pairs):
            speeds.append((found["observed"], found["blind"]))
            say(f"pair {len(speeds)} of {load.pairs}: {speeds[-1][0]:.0f} observed, {speeds[-1][1]:.0f} blind tokens/s")
    return speeds


def summary(speeds: Sequence[tuple[float, float]], load: Amount) -> dict[str, Any]:
    """The report from pairs of (observed, blind) tokens per second."""
    ratio = Spread.ratio(*zip(*speeds, strict=True))
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


async def tokens_per_second(address: str, load: Amount) -> float:
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


if __name__ == "__main__":
    main()
