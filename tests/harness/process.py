"""One service of a test mesh as a process: the test starts it, reads its state, signals it and ends it.

No supervisor restarts it, so the test decides which processes live. `ask` reaches the window of the process
(`tests/harness/window.py`); its structured events go to the listener (`tests/harness/events.py`)."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.orders import Orders

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0
DRAIN_SECONDS = 5.0
QUIET_SECONDS = 10.0  # a page that is still held after this time has leaked

OnEvent = Callable[[Mapping[str, Any]], None]  # name and fields of one structured event


class ServiceProcess:
    """One service; `start` may be called again after its end."""

    def __init__(
        self, name: str, orders: Orders, on_event: OnEvent | None = None, *, within: Sequence[str] = ()
    ) -> None:
        """`within`: a command that begins the process's own command line and becomes it, such as `ip netns exec`."""
        self.name, self.orders, self._within = name, orders, within
        self.incarnation = 0
        self.address = ""
        self.lines: deque[str] = deque(maxlen=400)
        self._on_event = on_event
        self._process: Process | None = None
        self._ready = asyncio.Event()
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._readers: list[asyncio.Task[None]] = []

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while the process runs, minus N when signal N ended it."""
        return self._process.returncode if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Return when the service's event loop serves; the gateway may not have attached the worker yet."""
        self._ready.clear()
        paths = [str(ROOT), str(ROOT / "kernels"), str(ROOT / "protos")]
        self._process = await asyncio.create_subprocess_exec(
            *(*self._within, sys.executable, "-m", "tests.harness.worker", self.orders.pack()),
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
        """Send a command to the process's window and return the answer; ConnectionError when the process ends first."""
        assert self._process is not None and self._process.stdin is not None
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._process.stdin.write(json.dumps({"number": number, "command": command, **arguments}).encode() + b"\n")
            fields: dict[str, Any] = await answer
        finally:
            self._answers.pop(number, None)
        if "error" in fields:
            raise RuntimeError(f"{self.name}: {command}: {fields['error']}")
        return fields

    async def quiet(self, seconds: float = QUIET_SECONDS) -> dict[str, Any]:
        """States of the worker's pages, as soon as no page is held any more, at the latest after `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while pages_held(pages := await self.ask("pages")) and loop.time() < end:
            await asyncio.sleep(0.1)
        return pages

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def ended(self, seconds: float = START_SECONDS) -> int:
        """Wait for the end of the process; its exit status."""
        assert self._process is not None
        return await asyncio.wait_for(self._process.wait(), seconds)

    async def stop(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended, and nobody has said so yet
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
            fields = json.loads(raw)
            match fields.pop("event"):
                case "ready":
                    self.incarnation, self.address = fields.get("incarnation", 0), fields["address"]
                    self._ready.set()
                case "answer":
                    answer = self._answers.get(fields.pop("number"))
                    if answer is not None and not answer.done():
                        answer.set_result(fields)
                case "note":
                    if self._on_event is not None:
                        self._on_event(fields)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ConnectionError(f"{self.name} ended"))

    async def _read_lines(self, process: Process) -> None:
        assert process.stderr is not None
        while raw := await process.stderr.readline():
            self.lines.append(raw.decode(errors="replace").rstrip())


def pages_held(pages: Mapping[str, Any]) -> int:
    """How many pages are neither free nor cached."""
    return sum(pages["states"].get(state, 0) for state in ("landing", "in_use", "quarantined"))
