"""A storm: every few seconds one process of a mesh is killed or stopped, or its network is disturbed, under load.

Clients must notice nothing but time: no request fails, no token is wrong, and in the end every page is back. Strikes
draw the role first, then the process, so that gateways are hit as often as decode workers; of the kinds that fit the
process they take one that has struck its role least. One worker of each tier has a network namespace of its own, where
the host permits it: the kernel disturbs its network, and a proxy that of the others."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.chaos.namespaces import KERNEL, NamespaceSet, namespaces
from tests.chaos.storm_load import StormLoad
from tests.chaos.storm_mesh import StormMesh, storm_mesh
from tests.harness.process import START_SECONDS, ServiceProcess, pages_held

EVERY_SECONDS = 5.0
STREAMS = 8
LONGEST_STOP_SECONDS = 9.0  # a lease is 5 s: some stops end before it, some behind
QUIET_SECONDS = 40.0  # until every page is back behind the last strike: a lease, and a writer that is killed
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",
    "worker.pool_pages": "200",
    "worker.threads": "1",
}
PROCESS, NETWORK = ("kill", "stop"), ("delay", "hold", "cut")
APART = ("prefill-0", "decode-0")  # they live in namespaces of their own


@dataclass
class StormStrikes:
    mesh: StormMesh
    random: Random
    network: NamespaceSet | None  # None: the network is left alone
    done: list[tuple[float, str, str]] = field(default_factory=list)  # when, kind, name of the process
    _ends: set["asyncio.Task[None]"] = field(default_factory=set)

    async def run(self, over: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(EVERY_SECONDS):
                    await over.wait()
            except TimeoutError:
                self.strike()
                continue
            await asyncio.gather(*self._ends)
            return

    def strike(self) -> None:
        role = self.random.choice((self.mesh.gateways, self.mesh.prefills, self.mesh.decodes))
        target = self.random.choice(role)
        if not target.alive:
            return  # it starts again just now
        kind, seconds = self.kind_for(target.name), self.random.uniform(0.3, LONGEST_STOP_SECONDS)
        self.done.append((asyncio.get_running_loop().time(), kind, target.name))
        proxy = self.mesh.proxies.get(target.name)
        match kind:
            case "kill":
                target.send_signal(signal.SIGKILL)
            case "stop":
                pid = target.pid
                target.send_signal(signal.SIGSTOP)
                self._later(seconds, lambda: self._go_on(target, pid))
            case "delay" if proxy is not None:
                proxy.delay_seconds = self.random.uniform(0.02, 0.4)
                self._later(seconds, lambda: setattr(proxy, "delay_seconds", 0.0))
            case "hold" if proxy is not None:
                proxy.hold()
                self._later(seconds, proxy.release)
            case "cut" if proxy is not None:
                proxy.cut()
            case _ if self.network is not None:
                space = self.network.spaces[target.name]
                space.begin(kind, self.random)
                self._later(seconds, lambda: space.end(kind))

    def kind_for(self, name: str) -> str:
        """A kind that fits this process, and that has struck its role least."""
        kinds = list(PROCESS)
        if self.network is not None and (space := self.network.spaces.get(name)) is not None:
            kinds += [kind for kind in KERNEL if kind not in space.active and kind not in self.network.unavailable]
        elif self.network is not None and name in self.mesh.proxies:
            kinds += NETWORK
        struck = Counter(kind for _, kind, other in self.done if role_of(other) == role_of(name))
        least = min(struck[kind] for kind in kinds)
        return self.random.choice([kind for kind in kinds if struck[kind] == least])

    def _go_on(self, target: ServiceProcess, pid: int) -> None:
        if target.alive and target.pid == pid:  # it may have been killed, and started again
            target.send_signal(signal.SIGCONT)

    def _later(self, seconds: float, call: Callable[[], object]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            call()

        task = asyncio.create_task(wait())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)


async def storm(
    seconds: float,
    random: Random,
    *,
    network: bool = True,
    on_second: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    with ExitStack() as stack:
        apart = stack.enter_context(namespaces(APART)) if network else None
        return await _storm(seconds, random, apart, on_second)


async def _storm(
    seconds: float, random: Random, network: NamespaceSet | None, on_second: Callable[[], None]
) -> dict[str, Any]:
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    async with storm_mesh(settings=SETTINGS, network=network) as mesh:
        load = StormLoad(mesh.addresses, random)
        await load.learn()
        keeping = asyncio.create_task(mesh.keep_running())
        strikes, calm = StormStrikes(mesh, random, network), asyncio.Event()
        running = asyncio.create_task(load.run(STREAMS, over))
        striking = asyncio.create_task(strikes.run(calm))
        end = loop.time() + seconds
        while loop.time() < end and not keeping.done():
            await asyncio.sleep(1.0)
            on_second()
        if keeping.done():
            await keeping  # a process did not start again
        calm.set()
        await striking
        over.set()
        await running
        await mesh.complete(3 * START_SECONDS)
        states = await asyncio.gather(*(worker.quiet(QUIET_SECONDS) for worker in mesh.workers))
        keeping.cancel()
        pages = {worker.name: each for worker, each in zip(mesh.workers, states, strict=True)}
        leaked = sum(map(pages_held, states))
        problems = [f"{count} times {why}" for why, count in Counter(load.failed).items()]
        problems += [f"{name}: {each}" for name, each in pages.items() if pages_held(each) or not each["agree"]]
        if problems or load.wrong_tokens:
            print(mesh.last_lines(), file=sys.stderr)
    kinds = Counter(f"{kind} {role_of(name)}" for _, kind, name in strikes.done)
    spaces = network.spaces.values() if network is not None else ()
    return {
        "requests": load.requests,
        "kills": sum(kind in PROCESS for _, kind, _ in strikes.done),
        "failed": len(load.failed),
        "wrong_tokens": load.wrong_tokens,
        "leaked_pages": leaked,
        "resume_seconds": resume_seconds(strikes, load.waits),
        "strikes": dict(sorted(kinds.items())),
        "by_kind": dict(Counter(kind for _, kind, _ in strikes.done)),
        "packets_affected": dict(sum((space.affected for space in spaces), Counter[str]())),
        "unavailable": network.unavailable if network is not None else {},
        "restarts": mesh.restarts,
        "minutes": round(seconds / 60, 2),
        "problems": problems,
    }


def role_of(name: str) -> str:
    return name.partition("-")[0]


def resume_seconds(strikes: StormStrikes, waits: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """For each kind and role the longest time that any stream which ran at the strike waited behind it for its next
    tokens: of half of the strikes, and of all. Waits for a turn count too, so these are bounds from above."""
    found: dict[str, list[float]] = {}
    for at, kind, name in strikes.done:
        behind = [came - at for came, wait in waits if came - wait <= at < came]
        if behind:
            found.setdefault(f"{kind} {role_of(name)}", []).append(max(behind))
    return {
        kind: {"median": round(sorted(times)[len(times) // 2], 2), "longest": round(max(times), 2)}
        for kind, times in sorted(found.items())
    }
