"""A real mesh for benchmarks and fault tests: every service a process of its own, started, looked into and ended here.

Unlike `baton up` nobody is restarted unless asked to, so that a test decides who lives. Answers of the windows are the
workers' own (`bench/window.py`); requests go through the gateway's public gRPC API like anybody's."""

import asyncio
import itertools
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.orders import Orders
from cli.health import health
from cli.ports import free_address
from engine.builtin import ensure_random
from mesh.config import default_cache_folder

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 60.0
DRAIN_SECONDS = 5.0
QUIET_SECONDS = 10.0  # after this, a page that is out has leaked

Note = Callable[["MeshProcess", str], None]


class MeshProcess:
    """One service; `start` may be called again after its end."""

    def __init__(self, name: str, orders: Orders, on_note: Note | None = None) -> None:
        self.name, self.orders = name, orders
        self.incarnation = 0
        self.address = ""
        self.lines: deque[str] = deque(maxlen=400)
        self._on_note = on_note
        self._process: Process | None = None
        self._ready = asyncio.Event()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._readers: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None while it runs; minus the signal that ended it."""
        return self._process.returncode if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Returns when its event loop serves; the gateway may not know it yet."""
        self._ready.clear()
        paths = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "protos")]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "bench.worker_process", self.orders.pack()),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            limit=1 << 24,
        )
        self._readers = [
            asyncio.create_task(self._read_facts(self._process)),
            asyncio.create_task(self._read_lines(self._process)),
        ]
        ready = asyncio.create_task(self._ready.wait())
        ended = asyncio.create_task(self._process.wait())
        await asyncio.wait((ready, ended), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        ended.cancel()
        if not self._ready.is_set():
            raise RuntimeError(f"{self.name} did not start:\n" + "\n".join(self.lines))

    async def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """ConnectionError when the process ends before it answers."""
        assert self._process is not None and self._process.stdin is not None
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps({"number": number, "command": command, **arguments}).encode() + b"\n")
            facts: dict[str, Any] = await answer
        finally:
            self._asked.pop(number, None)
        if "error" in facts:
            raise RuntimeError(f"{self.name}: {command}: {facts['error']}")
        return facts

    async def quiet(self, seconds: float = QUIET_SECONDS) -> dict[str, Any]:
        """The states of its pages: once none is out any more, or as they are after so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while pages_out(pages := await self.ask("pages")) and loop.time() < end:
            await asyncio.sleep(0.1)
        return pages

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def ended(self, seconds: float = START_SECONDS) -> int:
        """Its status, once it is over."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)

    async def stop(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            self.send_signal(signal.SIGCONT)
            try:
                await asyncio.wait_for(self._process.wait(), DRAIN_SECONDS)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _read_facts(self, process: Process) -> None:
        assert process.stdout is not None
        while raw := await process.stdout.readline():
            facts = json.loads(raw)
            match facts.pop("event"):
                case "ready":
                    self.incarnation, self.address = facts.get("incarnation", 0), facts["address"]
                    self._ready.set()
                case "answer":
                    answer = self._asked.get(facts.pop("number"))
                    if answer is not None and not answer.done():
                        answer.set_result(facts)
                case "note":
                    if self._on_note is not None:
                        self._on_note(self, facts["text"])
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self.name} ended"))

    async def _read_lines(self, process: Process) -> None:
        assert process.stderr is not None
        while raw := await process.stderr.readline():
            self.lines.append(raw.decode(errors="replace").rstrip())


class ProcessMesh:
    def __init__(
        self, gateway: MeshProcess, http: str, prefills: list[MeshProcess], decodes: list[MeshProcess]
    ) -> None:
        self.gateway, self.http, self.prefills, self.decodes = gateway, http, prefills, decodes

    @property
    def address(self) -> str:
        """Of the public gRPC API."""
        return self.gateway.address

    @property
    def workers(self) -> list[MeshProcess]:
        return [*self.prefills, *self.decodes]

    async def attached(self, prefills: int, decodes: int, seconds: float = START_SECONDS) -> None:
        """Until the gateway holds streams to exactly so many workers."""
        seen = None
        try:
            async with asyncio.timeout(seconds):
                while (seen := await health(self.http)) is None or (
                    (seen.get("prefill"), seen.get("decode")) != (prefills, decodes)
                ):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise RuntimeError(
                f"the gateway sees {seen}, not {prefills} prefill and {decodes} decode workers"
            ) from None

    def words(self) -> str:
        """The last lines of every process, for people."""
        return "\n".join(f"[{p.name}] {line}" for p in (self.gateway, *self.workers) for line in list(p.lines)[-12:])


def pages_out(pages: Mapping[str, Any]) -> int:
    """How many pages are neither free nor cached."""
    return sum(pages["states"].get(state, 0) for state in ("landing", "in_use", "quarantined"))


@asynccontextmanager
async def process_mesh(
    *,
    prefills: int = 2,
    decodes: int = 1,
    settings: Mapping[str, str] | None = None,
    rules: Mapping[str, bool | float | int] | None = None,
    bytes_per_second: float | None = None,
    span_pause_seconds: float = 0.0,
    resume: bool = True,
    on_note: Note | None = None,
    start_decodes: bool = True,
) -> AsyncIterator[ProcessMesh]:
    """Started and attached (the decode workers only if so), ended on the way out."""
    said = dict(settings or {})
    grpc, http = free_address(), free_address()
    if "model" not in said:
        folder = await asyncio.to_thread(ensure_random, default_cache_folder())
        said |= {"model": str(folder), "served_name": "random"}
    common = said | {"gateway.grpc_address": grpc, "gateway.http_address": http, "worker.gateways": grpc}

    def make(tier: str, name: str) -> MeshProcess:
        orders = Orders(
            tier=tier,
            settings=common | {f"{tier}.name": name},
            parent=os.getpid(),
            rules=rules or {},
            bytes_per_second=bytes_per_second,
            span_pause_seconds=span_pause_seconds,
            resume=resume,
        )
        return MeshProcess(name, orders, on_note)

    mesh = ProcessMesh(
        make("gateway", "gateway"),
        http,
        [make("prefill", f"prefill-{number}") for number in range(prefills)],
        [make("decode", f"decode-{number}") for number in range(decodes)],
    )
    first = [*mesh.prefills, *(mesh.decodes if start_decodes else ())]
    try:
        await mesh.gateway.start()
        await asyncio.gather(*(worker.start() for worker in first))
        if start_decodes:
            await mesh.attached(prefills, decodes)
        yield mesh
    finally:
        await asyncio.gather(*(process.stop() for process in (mesh.gateway, *mesh.workers)))
