"""`python -m bench.gateway`: what the front door costs, against a worker that emits at will.

Streamed tokens per second of the gateway over those of a bare uvloop program that writes the same bytes to the same
number of sockets, one token per chunk; the time to the first token that it adds at half load; how much one client that
does not read slows the others; the longest time for which the gateway's loop stood still in all of that; and what is
left after many connections were dropped in mid-request. Gateway and bare program take turns on the same machine, and
every figure is a median over the turns, with its spread."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench import gateway_runs as runs
from bench.gateway_targets import GatewayTarget, bare_target, gateway_target
from bench.handoff import say
from bench.processor import processor
from bench.spread import Spread
from gateway.tracing.traces import KEPT_REQUESTS

TARGETS = {"tokens_ratio_to_bare": 0.5, "ttft_added_p50_ms": 2.0, "ttft_added_p99_ms": 10.0, "slow_reader": 1.1}
LONGEST_BLOCK_MS, MEMORY_GROWTH, HOSTILE_RATIO = 50.0, 0.05, 1.5
ATTACKED = 64  # streams beside the hostile requests
ATTACKED_RATE = 2000.0  # their tokens per second, of all together
SETTLE_SECONDS = 6.0  # after which the memory of large requests is back
READER_KIB = "64"  # so that a client that does not read is behind soon
WARM_DROPS = 2 * KEPT_REQUESTS  # connections dropped before memory is looked at: the gateway keeps the last requests
BLOCKS = ("longest_block_ms", "longest_busy_ms")


@dataclass(frozen=True, slots=True)
class DoorLoad:
    clients: int
    seconds: float  # length of one turn
    turns: int
    requests: int  # first tokens of one turn
    drops: int
    attacks: int  # times that all hostile requests come


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one turn")
    parser.add_argument("--turns", type=int, default=7, help="turns of each figure")
    parser.add_argument("--requests", type=int, default=150, help="first tokens measured in one turn")
    parser.add_argument("--drops", type=int, default=10_000, help="connections dropped in mid-request")
    parser.add_argument("--attacks", type=int, default=2, help="times that all hostile requests come")
    chosen = parser.parse_args()
    load = DoorLoad(
        chosen.clients, chosen.seconds, chosen.turns, chosen.requests, max(2, chosen.drops), max(1, chosen.attacks)
    )
    from cli.local_mesh.loop import PreciseLoop

    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        report = runner.run(bench(load))
    if chosen.json:
        print(json.dumps(report))
    sys.exit(0 if report["passed"] else 1)


async def bench(load: DoorLoad) -> dict[str, Any]:
    random = Random(0)
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(Progress(console=Console(stderr=True)))
        bar = progress.add_task("the front door", total=3 * load.turns + 3)
        gateway = await stack.enter_async_context(gateway_target(reader_kib=READER_KIB))
        sample = await runs.open_streams(gateway, 1)
        event_bytes = sample[0].sample_bytes
        await runs.close_streams(gateway, sample)
        blocks: dict[str, dict[str, float]] = {}

        async def note(phase: str) -> None:
            facts = await gateway.facts()
            blocks[phase] = {key: facts[key] for key in BLOCKS}

        await note("start")
        bare = await stack.enter_async_context(bare_target(event_bytes))
        for target in (gateway, bare):  # warm-up
            await runs.tokens_per_second(target, load.clients, 0.5)
        speeds, firsts, gaps = list[tuple[float, float]](), list[tuple[list[float], list[float]]](), list[float]()
        for number in range(load.turns):
            pair = dict.fromkeys(("gateway", "bare"), 0.0)
            for name in sorted(pair, reverse=bool(number % 2)):
                target = gateway if name == "gateway" else bare
                pair[name] = await runs.tokens_per_second(target, load.clients, load.seconds)
            speeds.append((pair["gateway"], pair["bare"]))
            progress.update(bar, advance=1, description=f"{pair['gateway']:.0f} of {pair['bare']:.0f} tokens/s")
        await note("throughput")
        half = median(speed for speed, _ in speeds) / 2
        for _ in range(load.turns):
            one = await runs.first_tokens(gateway, load.clients, half, load.requests, random)
            two = await runs.first_tokens(bare, load.clients, half, load.requests, random)
            firsts.append((one, two))
            progress.update(bar, advance=1, description=f"first token after {median(one) * 1000:.2f} ms")
        await note("first tokens")
        for number in range(load.turns):
            both = {}
            for stalled in (0, 1) if number % 2 else (1, 0):
                both[stalled] = await runs.gap_p99(gateway, load.clients, half, load.seconds, stalled=stalled)
            gaps.append(both[1] / both[0])
            progress.update(bar, advance=1, description=f"gaps {gaps[-1]:.2f} with a slow reader")
        await note("slow reader")
        await runs.unread_and_closed(gateway, 20, 200)
        await note("unread and closed")
        progress.update(bar, advance=1, description="connections dropped in mid-request")
        await runs.dropped(gateway, min(WARM_DROPS, load.drops), random)
        await gateway.idle()
        before = (await gateway.facts())["rss_bytes"]
        await runs.dropped(gateway, load.drops, random)
        left = await gateway.idle()
        await note("connections dropped")
        after = (await gateway.facts())["rss_bytes"]
        progress.update(bar, advance=1, description="hostile requests")
        await runs.attacked(gateway, ATTACKED, ATTACKED_RATE)  # the first time loads what parses large bodies
        attacks, left_over = list[float](), [await settled(gateway)]
        for _ in range(load.attacks):
            calm, hostile = await runs.attacked(gateway, ATTACKED, ATTACKED_RATE)
            attacks.append(hostile / calm)
            left_over.append(await settled(gateway))
        blocks["hostile requests"] = {key: max(each[key] for each in left_over[1:]) for key in BLOCKS}
        sizes = [each["rss_bytes"] for each in left_over]
        progress.update(bar, advance=1)
    del blocks["start"]
    growths = {"dropped": after / before - 1, "hostile": sizes[-1] / sizes[0] - 1}
    return summary(load, speeds, firsts, gaps, attacks, blocks, left, growths, event_bytes)


async def settled(gateway: GatewayTarget) -> dict[str, float]:
    """The facts of the gateway since the last time, with its memory when it has been idle for a while."""
    await gateway.idle()
    await asyncio.sleep(SETTLE_SECONDS)
    return await gateway.facts()


def summary(
    load: DoorLoad,
    speeds: list[tuple[float, float]],
    firsts: list[tuple[list[float], list[float]]],
    gaps: list[float],
    attacks: list[float],
    blocks: dict[str, dict[str, float]],
    left: int,
    growths: dict[str, float],
    event_bytes: int,
) -> dict[str, Any]:
    ratio, slow = Spread.of([gateway / bare for gateway, bare in speeds]), Spread.of(gaps)
    hostile, growth = Spread.of(attacks), max(growths.values())
    added = {
        f"p{percent}": Spread.of(
            [(runs.percentile(one, percent) - runs.percentile(two, 50)) * 1000 for one, two in firsts]
        )
        for percent in (50, 99)
    }
    say(f"{processor()}, {load.clients} clients, {event_bytes} bytes for a token")
    say(f"tokens/s over bare      {ratio}")
    for name, spread in added.items():
        say(f"first token, {name} added {spread} ms")
    say(f"gaps with a slow reader {slow}")
    block_ms = max(each["longest_block_ms"] for each in blocks.values())
    passed = ratio.median >= TARGETS["tokens_ratio_to_bare"] and slow.median <= TARGETS["slow_reader"]
    passed &= (
        added["p50"].median <= TARGETS["ttft_added_p50_ms"] and added["p99"].median <= TARGETS["ttft_added_p99_ms"]
    )
    say(f"gaps beside hostile requests {hostile}")
    say(f"longest block {block_ms:.1f} ms, {left} requests left, memory {growth:+.1%}")
    passed &= block_ms <= LONGEST_BLOCK_MS and left == 0 and growth <= MEMORY_GROWTH
    passed &= hostile.median <= HOSTILE_RATIO
    return {
        "tokens_ratio_to_bare": ratio.median,
        "tokens_ratio_spread": [ratio.low, ratio.high],
        "ttft_added_ms": {name: spread.median for name, spread in added.items()},
        "ttft_added_spread_ms": {name: [spread.low, spread.high] for name, spread in added.items()},
        "slow_reader_itl_ratio": slow.median,
        "slow_reader_spread": [slow.low, slow.high],
        "longest_block_ms": block_ms,
        "blocks": blocks,
        "tokens_per_second": median(speed for speed, _ in speeds),
        "bare_tokens_per_second": median(speed for _, speed in speeds),
        "dropped": load.drops,
        "left_running": left,
        "memory_growth": growths,
        "hostile_itl_ratio": hostile.median,
        "hostile_itl_spread": [hostile.low, hostile.high],
        "event_bytes": event_bytes,
        "clients": load.clients,
        "turns": load.turns,
        "processor": processor(),
        "targets": TARGETS,
        "passed": passed,
    }


if __name__ == "__main__":
    main()
