"""`python -m bench.gateway`: what the front door costs, against a worker that emits at will.

Streamed tokens per second of the gateway over those of a bare uvloop program that writes the same bytes to the same
number of sockets, one token per chunk; the time to the first token that it adds at half load; how much one client that
does not read slows the others; the longest time for which the gateway's loop stood still in all of that; and what is
left after many connections were dropped in mid-request. Gateway and bare program take turns on the same machine, and
every figure is a median over the turns, with its spread."""

import argparse
import asyncio
from random import Random
from statistics import median
from typing import Any

from bench import gateway_runs as runs
from bench.command import missed, parser_of, run, say
from bench.gateway_targets import BareTarget, GatewayTarget, Target, bare_target, gateway_target
from bench.processor import processor
from bench.spread import Spread, medians, ranges
from bench.turns import rounds
from cli.local_mesh.loop import PreciseLoop
from gateway.tracing.traces import KEPT_REQUESTS

TARGETS = {"tokens_ratio_to_bare": 0.5, "ttft_added_p50_ms": 2.0, "ttft_added_p99_ms": 10.0, "slow_reader": 1.1}
LONGEST_BLOCK_MS, MEMORY_GROWTH, HOSTILE_RATIO = 50.0, 0.05, 1.5
ATTACKED = 64  # streams beside the hostile requests
ATTACKED_RATE = 2000.0  # their tokens per second, of all together
SETTLE_SECONDS = 6.0  # after which the memory of large requests is back
READER_KIB = "64"  # so that a client that does not read is behind soon
WARM_DROPS = 2 * KEPT_REQUESTS  # connections dropped before memory is looked at: the gateway keeps the last requests
BLOCKS = ("longest_block_ms", "longest_busy_ms")


def main() -> None:
    parser = parser_of("gateway", __doc__)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one turn")
    parser.add_argument("--turns", type=int, default=7, help="turns of each figure")
    parser.add_argument("--requests", type=int, default=150, help="first tokens measured in one turn")
    parser.add_argument("--drops", type=int, default=10_000, help="connections dropped in mid-request")
    parser.add_argument("--attacks", type=int, default=2, help="times that all hostile requests come")
    run(parser, bench, loop_factory=PreciseLoop)


async def bench(load: argparse.Namespace) -> dict[str, Any]:
    load.drops, load.attacks = max(2, load.drops), max(1, load.attacks)
    async with gateway_target(reader_kib=READER_KIB) as gateway:
        sample = await runs.open_streams(gateway, 1)
        event_bytes = sample[0].sample_bytes
        await runs.close_streams(gateway, sample)
        await gateway.facts()  # its longest block so far does not count
        async with bare_target(event_bytes) as bare:
            door = FrontDoor(load, gateway, bare)
            say(f"{processor()}, {load.clients} clients, {event_bytes} bytes for a token")
            await door.throughput()
            await door.first_tokens()
            await door.slow_reader()
            await door.dropped()
            await door.hostile()
    return door.report() | {"event_bytes": event_bytes, "processor": processor()}


class FrontDoor:
    """The measurements, in the order in which they are taken."""

    def __init__(self, load: argparse.Namespace, gateway: GatewayTarget, bare: BareTarget) -> None:
        self._load, self._gateway, self._bare, self._random = load, gateway, bare, Random(0)
        self._blocks, self._growths = dict[str, dict[str, float]](), dict[str, float]()
        self._speeds: dict[str, list[float]] = {"bare": [], "gateway": []}
        self._left = 0  # requests that ran on behind dropped connections

    async def throughput(self) -> None:
        load = self._load
        targets: dict[str, Target] = {"bare": self._bare, "gateway": self._gateway}
        for name in ("gateway", "bare"):  # warm-up
            await runs.tokens_per_second(targets[name], load.clients, 0.5)

        async def measure(name: str) -> float:
            return await runs.tokens_per_second(targets[name], load.clients, load.seconds)

        async for found in rounds(targets, measure, load.turns):
            for name, speed in found.items():
                self._speeds[name].append(speed)
        self._tokens = self._told("tokens/s over bare", Spread.ratio(self._speeds["gateway"], self._speeds["bare"]))
        self._half = median(self._speeds["gateway"]) / 2
        await self._note("throughput")

    async def first_tokens(self) -> None:
        load, firsts = self._load, list[tuple[list[float], list[float]]]()
        for _ in range(load.turns):
            one = await runs.first_tokens(self._gateway, load.clients, self._half, load.requests, self._random)
            two = await runs.first_tokens(self._bare, load.clients, self._half, load.requests, self._random)
            firsts.append((one, two))
        self._added = {
            f"p{percent}": self._told(
                f"first token, p{percent} added in ms",
                Spread.of([(runs.percentile(one, percent) - runs.percentile(two, 50)) * 1000 for one, two in firsts]),
            )
            for percent in (50, 99)
        }
        await self._note("first tokens")

    async def slow_reader(self) -> None:
        load = self._load

        async def gap(stalled: int) -> float:
            return await runs.gap_p99(self._gateway, load.clients, self._half, load.seconds, stalled=stalled)

        gaps = [found[1] / found[0] async for found in rounds((1, 0), gap, load.turns)]
        self._slow = self._told("gaps with a slow reader", Spread.of(gaps))
        await self._note("slow reader")
        await runs.unread_and_closed(self._gateway, 20, 200)
        await self._note("unread and closed")

    async def dropped(self) -> None:
        gateway, drops = self._gateway, self._load.drops
        await runs.dropped(gateway, min(WARM_DROPS, drops), self._random)
        await gateway.idle()
        before = (await gateway.facts())["rss_bytes"]
        await runs.dropped(gateway, drops, self._random)
        self._left = await gateway.idle()
        await self._note("connections dropped")
        self._growths["dropped"] = (await gateway.facts())["rss_bytes"] / before - 1

    async def hostile(self) -> None:
        attacks = list[float]()
        await runs.attacked(self._gateway, ATTACKED, ATTACKED_RATE)  # the first time loads what parses large bodies
        left_over = [await settled(self._gateway)]
        for _ in range(self._load.attacks):
            calm, hostile = await runs.attacked(self._gateway, ATTACKED, ATTACKED_RATE)
            attacks.append(hostile / calm)
            left_over.append(await settled(self._gateway))
        self._blocks["hostile requests"] = {key: max(each[key] for each in left_over[1:]) for key in BLOCKS}
        self._growths["hostile"] = left_over[-1]["rss_bytes"] / left_over[0]["rss_bytes"] - 1
        self._hostile = self._told("gaps beside hostile requests", Spread.of(attacks))

    def report(self) -> dict[str, Any]:
        block_ms, growth = max(each["longest_block_ms"] for each in self._blocks.values()), max(self._growths.values())
        say(f"longest block {block_ms:.1f} ms, {self._left} requests left, memory {growth:+.1%}")
        figures = {
            "tokens_ratio_to_bare": self._tokens.median,
            "slow_reader_itl_ratio": self._slow.median,
            "hostile_itl_ratio": self._hostile.median,
            "longest_block_ms": block_ms,
            "left_running": self._left,
        }
        added = {f"ttft_added_{name}_ms": spread.median for name, spread in self._added.items()}
        least = {"tokens_ratio_to_bare": TARGETS["tokens_ratio_to_bare"]}
        most = {name: TARGETS[name] for name in added} | {"slow_reader_itl_ratio": TARGETS["slow_reader"]}
        most |= {"longest_block_ms": LONGEST_BLOCK_MS, "left_running": 0, "hostile_itl_ratio": HOSTILE_RATIO}
        most["memory_growth"] = MEMORY_GROWTH
        lines = missed(figures | added | {"memory_growth": growth}, least=least, most=most)
        return figures | {
            "tokens_ratio_spread": self._tokens.range,
            "ttft_added_ms": medians(self._added),
            "ttft_added_spread_ms": ranges(self._added),
            "slow_reader_spread": self._slow.range,
            "hostile_itl_spread": self._hostile.range,
            "blocks": self._blocks,
            "tokens_per_second": median(self._speeds["gateway"]),
            "bare_tokens_per_second": median(self._speeds["bare"]),
            "dropped": self._load.drops,
            "memory_growth": self._growths,
            "clients": self._load.clients,
            "turns": self._load.turns,
            "targets": TARGETS,
            "passed": not lines,
            "missed": lines,
        }

    async def _note(self, phase: str) -> None:
        facts = await self._gateway.facts()
        self._blocks[phase] = {key: facts[key] for key in BLOCKS}

    def _told(self, name: str, spread: Spread) -> Spread:
        say(f"{name:<28} {spread}")
        return spread


async def settled(gateway: GatewayTarget) -> dict[str, float]:
    """The facts of the gateway since the last time, with its memory when it has been idle for a while."""
    await gateway.idle()
    await asyncio.sleep(SETTLE_SECONDS)
    return await gateway.facts()


if __name__ == "__main__":
    main()
