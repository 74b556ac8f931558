"""`python -m bench.overload`: what is left of a mesh's goodput when three and ten times its capacity come.

The mesh is that of `baton up` with the built-in model and the settings as they come. Clients of three lengths
(bench/overload_client.py) first find the capacity: so many at a time, each sends its next request when it has an
answer. Then requests come at random times, at several multiples of that rate, whether or not earlier ones are served.
Goodput counts the requests that get their first token and the following ones in time. The limit for the first is 1.5
times `gateway.queue_seconds`, the time for which the gateway lets a request wait; the other follows from the run at
capacity. Each request says how long its client waits for the whole answer: both limits together. At the end one request
comes to a mesh that has just been overloaded. Status 1 when a target is missed."""

import argparse
import asyncio
import re
from random import Random
from typing import Any
from urllib.request import urlopen

from bench.command import add_settings, parser_of, run, say
from bench.overload_client import KINDS, PreparedRequest, prepare, serve_one
from bench.overload_figures import GoodputLimits, OverloadRun, Served, summary
from bench.turns import rounds
from cli.arrangements.turn import FIRST_ID, LAST_ID, quantile
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.services import arranged, parse_settings
from mesh.config.settings import read_settings

LOADS = ("0.8", "1", "3", "10")  # multiples of the capacity
# Tokens of prompts that workers have computed: what their steps computed and emitted, without what was emitted.
STEPS = re.compile(r'^baton_step_(?:rows_sum\{[^}]*tier="prefill"|tokens_sum\{[^}]*tier="decode")[^}]*\} (\S+)', re.M)
EMITTED = re.compile(r"^baton_generation_tokens_total(?:\{[^}]*\})? (\S+)", re.M)
TTFT_TIMES = 1.5  # the limit for the first token over gateway.queue_seconds
MEASURED_SECONDS = 1.5  # workers push what they measured once a second
ITL_TIMES = 2.0  # the limit between tokens over the 99th percentile at capacity
AT_ONCE_SECONDS = 0.02
AGAIN_SECONDS = 0.2  # after which a refused client of the closed loop asks again


class NoCapacity(Exception):
    """The mesh serves nothing."""


class OverloadClients:
    """Sends load to one mesh."""

    def __init__(self, http_address: str, seed: int) -> None:
        self.port, self._random, self._address = int(http_address.rpartition(":")[2]), Random(seed), http_address
        self.limits: GoodputLimits | None = None  # how long clients wait follows from it; None: requests do not say

    def one(self) -> PreparedRequest:
        kind = self._random.choice(KINDS)
        waits = self.limits.whole_seconds(kind.answer_tokens) if self.limits is not None else None
        return prepare(self.port, kind, self._random.choices(range(FIRST_ID, LAST_ID + 1), k=kind.prompt_tokens), waits)

    async def closed(self, clients: int, seconds: float, *, warm_seconds: float = 0.0) -> OverloadRun:
        """Run this number of clients, each with one request at a time. Those that ended in the last `seconds` count."""
        loop, served = asyncio.get_running_loop(), list[Served]()
        began = loop.time()

        async def client() -> None:
            while loop.time() - began < warm_seconds + seconds:
                one = await serve_one(self.one())
                if one.refused:
                    await asyncio.sleep(AGAIN_SECONDS)
                elif warm_seconds < one.ended - began <= warm_seconds + seconds:
                    served.append(one)

        await asyncio.gather(*(client() for _ in range(clients)))
        return OverloadRun(served, seconds, 0.0)

    async def open(self, rate: float, seconds: float) -> OverloadRun:
        """Send requests at this rate; return when all have ended."""
        loop, tasks, at, arrivals = asyncio.get_running_loop(), list[asyncio.Task[Served]](), 0.0, list[float]()
        while (at := at + self._random.expovariate(rate)) < seconds:
            arrivals.append(at)
        requests = [self.one() for _ in arrivals]
        before, began = await self._rows(), loop.time()
        for at, request in zip(arrivals, requests, strict=True):
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            tasks.append(asyncio.create_task(serve_one(request)))
        served = await asyncio.gather(*tasks)
        await asyncio.sleep(MEASURED_SECONDS)
        return OverloadRun(served, seconds, await self._rows() - before)

    async def burst(self, rate: float, seconds: float) -> None:
        """Send requests at this rate; all their clients leave at the end."""
        end, tasks = asyncio.get_running_loop().time() + seconds, list[asyncio.Task[Served]]()
        while asyncio.get_running_loop().time() < end:
            tasks.append(asyncio.create_task(serve_one(self.one())))
            await asyncio.sleep(self._random.expovariate(rate))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _rows(self) -> float:
        """Prompt tokens that workers have computed so far."""
        page = await asyncio.to_thread(lambda: urlopen(f"http://{self._address}/metrics", timeout=10).read().decode())
        return sum(map(float, STEPS.findall(page))) - sum(map(float, EMITTED.findall(page)))


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    settings = parse_settings(options.set)
    read = read_settings(None, {}, settings).mesh()
    ttft, places = options.ttft or TTFT_TIMES * read.gateway.queue_seconds, read.decode.max_batch
    async with own_mesh(settings) as gateway:
        load = OverloadClients(gateway.http_address, options.seed)
        await load.closed(4, options.seconds / 4)  # warm-up
        full = await load.closed(places + 4, options.seconds, warm_seconds=options.seconds)
        capacity = len(full.requests) / options.seconds
        if not capacity:
            raise NoCapacity("no request was served while the capacity was measured")
        itl = quantile(sorted(each.itl_seconds for each in full.requests), 0.99) * ITL_TIMES
        load.limits = limits = GoodputLimits(ttft, itl)

        async def measure(times: str) -> OverloadRun:
            say(f"{times} times {capacity:.1f} requests/s")
            return await load.open(float(times) * capacity, options.seconds)

        found = [each async for each in rounds(LOADS, measure, options.rounds)]
        say("after an overload")
        afterwards = [await _afterwards(load, capacity, options.seconds / 2) for _ in range(options.rounds)]
    return summary({times: [each[times] for each in found] for times in LOADS}, limits) | {
        "settings": settings,
        "default": arranged(read),
        "capacity": capacity,
        "ttft_limit": limits.ttft_seconds,
        "itl_limit": limits.itl_seconds,
        "first_token_afterwards": afterwards,
        "rounds": options.rounds,
    }


async def _afterwards(load: OverloadClients, capacity: float, seconds: float) -> float:
    """Time from the moment at which everybody leaves an overload to the first token of a short request."""
    await load.burst(3 * capacity, seconds)
    left, short = asyncio.get_running_loop().time(), KINDS[0]
    request = prepare(load.port, short, [FIRST_ID] * short.prompt_tokens)
    while not (one := await serve_one(request)).done:
        await asyncio.sleep(AT_ONCE_SECONDS)  # the gateway has not noticed yet that everybody has left
    return one.first - left


def main() -> None:
    parser = parser_of("overload", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each load; figures are medians over them")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one run")
    parser.add_argument("--ttft", type=float, help="limit for the first token in seconds; else 1.5 times queue_seconds")
    parser.add_argument("--seed", type=int, default=1)
    add_settings(parser, "a setting of the mesh; gateway.queue_seconds=0 shows a mesh without admission control")
    run(parser, bench, NoCapacity)


if __name__ == "__main__":
    main()
