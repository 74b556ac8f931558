"""Ten thousand connections opened and dropped in mid-request: nothing is left running on any tier, no memory is lost.

`python -m tests.chaos.drops --count 10000 --json`, or `make drops`. Half of the connections speak HTTP, half gRPC;
each is dropped at a random moment (`tests/chaos/dropped.py`). Before, some warm the mesh up. Status 1 when a
request, a page or a connection is left 10 s after the last drop, or when a process has grown by more than 5%."""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.connecting.health import get_json
from gateway.tracing.traces import KEPT_REQUESTS
from tests.chaos.dropped import STAGES, Dropping, recorded_head
from tests.harness.mesh import ProcessMesh, process_mesh
from tests.harness.process import QUIET_SECONDS, pages_held

AT_ONCE = 48  # connections
MOST_GROWTH = 0.05
SETTLED_SECONDS = 1.0  # after which the connections of an idle gateway are those that it keeps
MOST_REFUSED = 0.02  # share of the connections whose requests may be refused
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.pool_pages": "256",  # few, so that the warm-up has touched all of them
    "worker.threads": "1",
    "decode.may_kill": "false",  # killing its writer would hide what is left
}


async def drop_many(
    count: int, random: Random, *, before: int, notices: bool = True, on_drop: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """`before`: connections that warm the mesh up. `notices`: off in the negative control, whose gateway does not
    notice that a client has gone."""
    began = time.monotonic()
    async with process_mesh(prefills=1, decodes=1, settings=SETTINGS, notices=notices) as mesh:
        dropping = Dropping(mesh.http, mesh.address, await recorded_head(), random)
        await _drop(dropping, before, on_drop)
        await left_in(mesh)
        at_first, open_at_first = _memory(mesh), await fewest_connections(mesh)
        dropping.stages.clear()
        series = list[int]()
        for tenth in range(10):
            await _drop(dropping, count * (tenth + 1) // 10 - count * tenth // 10, on_drop)
            series.append(_resident(mesh.gateway.pid) >> 20)
        left = await left_in(mesh)
        left["connections"] = max(0, await fewest_connections(mesh, open_at_first) - open_at_first)
        after = _memory(mesh)
        if any(left.values()):
            print(mesh.last_lines(), file=sys.stderr)
    growth = {name: after[name] / at_first[name] - 1 for name in at_first}
    problems = [f"{number} {name.replace('_', ' ')} left" for name, number in left.items() if number]
    problems += [f"{name} grew by {share:.1%}" for name, share in growth.items() if share > MOST_GROWTH]
    if dropping.refused > MOST_REFUSED * count:
        problems.append(f"{dropping.refused} requests were refused, so few of them ran when they were dropped")
    problems += [f"{times} times {problem}" for problem, times in Counter(dropping.problems).items()]
    return {
        "connections": count,
        "drops": {door: {stage: dropping.stages[f"{door} {stage}"] for stage in STAGES} for door in ("http", "grpc")},
        "answered": dropping.answered,
        "refused": dropping.refused,
        "left": left,
        "memory_mib": {name: [at_first[name] >> 20, after[name] >> 20] for name in at_first},
        "gateway_mib": series,  # after each tenth
        "largest_growth": round(max(growth.values()), 4),
        "seconds": round(time.monotonic() - began, 1),
        "problems": problems,
    }


def warm_up(count: int) -> int:
    """Connections before the first look: the gateway remembers the last requests, and caches fill."""
    return min(count, max(count // 10, 2 * KEPT_REQUESTS))


async def left_in(mesh: ProcessMesh) -> dict[str, int]:
    """The numbers of what still runs: as soon as nothing does, at the latest after QUIET_SECONDS."""
    loop = asyncio.get_running_loop()
    end = loop.time() + QUIET_SECONDS
    while True:
        load = await get_json(mesh.http, "/load")
        pages = await asyncio.gather(*(worker.ask("pages") for worker in mesh.workers))
        left = {
            "gateway_requests": int(load["server_load"]) if load is not None else 1,
            "worker_requests": sum(each["requests"] for each in pages),
            "pages": sum(map(pages_held, pages)),
        }
        if not any(left.values()) or loop.time() > end:
            return left
        await asyncio.sleep(0.1)


async def _drop(dropping: Dropping, count: int, on_drop: Callable[[], None]) -> None:
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for _ in numbers:
            await dropping.drop()
            on_drop()

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


def _memory(mesh: ProcessMesh) -> dict[str, int]:
    """Bytes of each process that are in memory."""
    return {process.name: _resident(process.pid) for process in (mesh.gateway, *mesh.workers)}


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def fewest_connections(mesh: ProcessMesh, enough: int = 0) -> int:
    """The fewest sockets that the gateway has open at once, as soon as these are `enough`: it closes its end a moment
    after the client has closed its own, the connection that asked for /load included."""
    loop = asyncio.get_running_loop()
    end = loop.time() + (QUIET_SECONDS if enough else SETTLED_SECONDS)
    fewest = gateway_sockets(mesh)
    while fewest > enough and loop.time() < end:
        await asyncio.sleep(0.05)
        fewest = min(fewest, gateway_sockets(mesh))
    return fewest


def gateway_sockets(mesh: ProcessMesh) -> int:
    """Open sockets of the gateway."""
    found = 0
    for entry in Path(f"/proc/{mesh.gateway.pid}/fd").iterdir():
        try:
            found += entry.readlink().name.startswith("socket:")
        except OSError:
            continue  # closed meanwhile
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.drops", description=__doc__)
    parser.add_argument("--count", type=int, default=10_000, help="connections, besides those that warm up")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    columns = (TextColumn("drops"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        before, random = warm_up(given.count), Random(given.seed)
        task = bar.add_task("", total=given.count + before)
        report = asyncio.run(drop_many(given.count, random, before=before, on_drop=lambda: bar.advance(task)))
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    if given.json:
        print(json.dumps(report))
    else:
        print(f"{given.count} drops, left: {report['left']}, largest growth {report['largest_growth']:.1%}")
    return int(bool(report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
