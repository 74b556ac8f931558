"""The supervisor of a mesh's processes: it starts them, passes their log lines on, restarts dead ones and stops them
all.

It is event driven, apart from its look for signs of life (cli/local_mesh/signs_of_life.py): it kills a process that
stands still. A process that ends with status 2 before it was ever ready has wrong settings, and no restart would help:
the mesh fails and says why. Every other process that dies is started again, after a longer wait each time."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from cli.errors import MeshFailed
from cli.local_mesh.priority import stand_back
from cli.local_mesh.signs_of_life import LOOK_SECONDS, LifeJudge, SignsOfLife
from mesh.telemetry.lossy_output import WRITER

WRONG_SETTINGS = 2  # exit status of `baton serve`
READY = " ready at "  # in the one line that a service logs when it serves
UP = " is up, class "  # in the gateway's line about a worker with which it has a session
BACKOFF_SECONDS = (0.5, 1.0, 2.0, 5.0)  # far below the time for which requests wait for a worker (mesh/rules.py)
GIVE_UP_STARTS = 3  # starts of a service that was never ready, after which the mesh fails
STEADY_SECONDS = 30.0  # a process that lived this long starts again after the shortest wait
DRAIN_SECONDS = 5.0  # time between SIGTERM and SIGKILL, besides what a service needs to drain


class ProcessState(Enum):
    STARTING = "starting"  # the process runs and has not logged that it is ready
    READY = "ready"
    DEAD = "dead"  # it ended; a restart is due
    STOPPED = "stopped"  # it ended and stays so


@dataclass(frozen=True, slots=True)
class Service:
    name: str  # prefill-0
    arguments: tuple[str, ...]  # arguments of the Python interpreter
    environment: tuple[tuple[str, str], ...] = ()  # variables added to this process's own
    drain_seconds: float = 0.0  # what the service itself takes to leave, at most
    niceness: int = 0  # how far it stands back for other services when the processor's cores are all busy


@dataclass(slots=True)
class Running:
    service: Service
    process: Process | None = None
    state: ProcessState = ProcessState.STARTING
    was_ready: bool = False
    starts: int = 0
    signs: SignsOfLife | None = None  # signs of life from the process; None: it has not been started, or has ended
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=20))


OnLine = Callable[[str, str], None]  # (service's name, line)


class Supervisor:
    def __init__(self, services: Sequence[Service], on_line: OnLine, *, gateways: int = 1) -> None:
        """The first `gateways` services are the processes of the gateway."""
        self.running, self._gateways = [Running(service) for service in services], gateways
        self._on_line = on_line
        self._keepers: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._failure: MeshFailed | None = None
        self._stopping = asyncio.Event()

    def start(self) -> None:
        """Must be called in the main thread's event loop, see cli/local_mesh/orphan.py."""
        self._keepers = [asyncio.create_task(self._keep(running)) for running in self.running]
        self._watching = asyncio.create_task(self._watch())

    async def all_ready(self, timeout_seconds: float | None = None) -> None:
        """Return once every service is ready at the same time; MeshFailed when that will not happen."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not all(running.state is ProcessState.READY for running in self.running):
                    self._check()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise MeshFailed("\n".join(self.not_ready())) from None

    def not_ready(self) -> list[str]:
        """The services that are not ready now, each with the last lines of its log."""
        late = [running for running in self.running if running.state is not ProcessState.READY]
        return [_last_words(running, "is not ready") for running in late]

    async def stop(self) -> None:
        """Stop the gateway first: its workers serve the answers that run until it has left."""
        self._stopping.set()
        for group in (self.running[: self._gateways], self.running[self._gateways :]):
            await asyncio.gather(*(self._end(running) for running in group))
        tasks = [*self._keepers, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _watch(self) -> None:
        """Kill every process that stands still; its keeper starts it again."""
        clock = asyncio.get_running_loop().time
        judge = LifeJudge(clock())
        while not self._stopping.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            serving = {r.signs: r for r in self.running if r.signs is not None and r.state is ProcessState.READY}
            for signs in judge.look(clock(), serving):
                running, heard = serving[signs], signs.heard_seconds
                if self._stopping.is_set() or running.process is None or running.process.returncode is not None:
                    continue
                signs.heard_seconds = None  # it is killed once
                assert heard is not None, "only a process that gave signs is judged"
                self._tell(running, f"has stood still for {clock() - heard:.1f} s: it is killed and starts again")
                running.process.kill()

    async def _keep(self, running: Running) -> None:
        """Keep one service running, over all its processes."""
        loop = asyncio.get_running_loop()
        deaths = 0
        while not self._stopping.is_set():
            begun = loop.time()
            status = await self._run(running)
            if self._stopping.is_set():
                break
            if status == WRONG_SETTINGS and not running.was_ready:
                running.state = ProcessState.STOPPED
                self._failure = self._failure or MeshFailed(_last_words(running, "cannot start"), WRONG_SETTINGS)
                self._changed.set()
                return
            if running.starts == GIVE_UP_STARTS and not running.was_ready:
                what = f"ended {running.starts} times while it started"
                self._failure = self._failure or MeshFailed(_last_words(running, what))
                self._changed.set()
            deaths = 0 if loop.time() - begun > STEADY_SECONDS else deaths
            wait_seconds = BACKOFF_SECONDS[min(deaths, len(BACKOFF_SECONDS) - 1)]
            deaths += 1
            self._tell(running, f"ended ({_cause(status)}), starts again in {wait_seconds} s")
            await asyncio.sleep(wait_seconds)
        running.state = ProcessState.STOPPED

    async def _run(self, running: Running) -> int:
        running.state = ProcessState.STARTING
        running.starts += 1
        running.signs = signs = SignsOfLife()
        try:
            return await self._live(running, signs)
        finally:
            running.signs = None
            signs.close()

    async def _live(self, running: Running, signs: SignsOfLife) -> int:
        """One process of the service from its start to its end; its exit status."""
        # In a session of its own: Ctrl-C reaches `baton up` alone, which then stops all services in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", *running.service.arguments, "--alive", str(signs.writer)),
            env=os.environ | dict(running.service.environment),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
            start_new_session=True,
            limit=1 << 20,
            pass_fds=(signs.writer,),
        )
        signs.started()
        running.process = process
        standing = asyncio.create_task(stand_back(process.pid, running.service.niceness))
        try:
            async for line in _lines(process):
                running.lines.append(line)
                if READY in line:
                    running.state, running.was_ready = ProcessState.READY, True
                    self._changed.set()
                self._tell(running, line)
            status = await process.wait()
        finally:
            standing.cancel()
            if process.returncode is None:  # only when this task was cancelled
                process.kill()
                await process.communicate()  # otherwise its pipe stays open
        running.state = ProcessState.DEAD
        self._changed.set()
        return status

    def _tell(self, running: Running, line: str) -> None:
        """Pass a line on. A full disk or a closed pipe costs the line, never the keeper that restarts the service."""
        try:
            self._on_line(running.service.name, line)
        except OSError as error:
            WRITER.lose(error.strerror or str(error))

    async def _end(self, running: Running) -> None:
        process = running.process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(running.service.drain_seconds + DRAIN_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def brief(line: str) -> str:
    """The line by which a service logs that it or a worker is there, without its numerics class; others as they are."""
    return line.partition(" class ")[0].rstrip(",") if READY in line or UP in line else line


def serve_arguments(tier: str, settings: dict[str, str], config: str | None = None) -> tuple[str, ...]:
    """Arguments that start one service as a process, which ends when this process ends."""
    arguments = ["-m", "cli", "serve", tier, "--parent", str(os.getpid())]
    if config is not None:
        arguments += ["--config", config]
    for key, value in settings.items():
        arguments += ["--set", f"{key}={value}"]
    return tuple(arguments)


async def _lines(process: Process) -> AsyncIterator[str]:
    assert process.stderr is not None
    while True:
        try:
            raw = await process.stderr.readline()
        except ValueError:  # a line longer than the limit
            continue
        if not raw:
            return
        yield raw.decode(errors="replace").rstrip()


def _cause(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"


def _last_words(running: Running, what: str) -> str:
    words = "\n".join(f"    {line}" for line in running.lines)
    return f"{running.service.name} {what}" + (f":\n{words}" if words else " and has logged nothing")
