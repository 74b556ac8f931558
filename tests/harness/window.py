"""The window into a worker process: it reports what the worker holds right now, between two moves of its event loop.

Commands come as JSON lines on stdin; answers leave on stdout, in any order. The command `interrupt` looks whenever
spans have arrived and sends its signal before the event loop moves on, so that it reports exactly what decode had at
that moment, however busy the machine is."""

import asyncio
import ctypes
import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from decode_svc.handoff.landings import Landings
from decode_svc.request.requests import DecodeRequest, OpenLanding
from decode_svc.worker import DecodeWorker
from engine.pool.pages import PagePool
from prefill_svc.worker import PrefillWorker
from tests.harness import delays

Command = Callable[..., Awaitable[dict[str, Any]]]


def write_fact(event: str, **fields: Any) -> None:
    """Write one line of JSON for the test process; `event` is ready, answer or note."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Window:
    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = {"delay": delay, **commands}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer commands until stdin ends; then end the process."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while raw := await reader.readline():
            task = loop.create_task(self._answer(json.loads(raw)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        raise asyncio.CancelledError

    async def _answer(self, command: dict[str, Any]) -> None:
        number, name = command.pop("number"), command.pop("command")
        try:
            write_fact("answer", number=number, **await self._commands[name](**command))
        except Exception as error:
            write_fact("answer", number=number, error=repr(error))


async def delay(stage: str, seconds: float) -> dict[str, Any]:
    """The next request that passes this stage here is delayed."""
    delays.arm(stage, seconds)
    return {}


def gateway_commands() -> Mapping[str, Command]:
    async def objects() -> dict[str, Any]:
        """How many objects of each type the collector knows, the most frequent ones. Memory that is free goes back
        to the system before."""
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        return {"counts": dict(Counter(type(each).__qualname__ for each in gc.get_objects()).most_common(80))}

    return {"objects": objects}


def prefill_commands(worker: PrefillWorker) -> Mapping[str, Command]:
    async def pages() -> dict[str, Any]:
        return {**count(worker.pages), "requests": len(worker.prompts)}

    async def look() -> dict[str, Any]:
        found = worker.prompts
        return {"prompts": [{"request": p.ticket.request, "phase": p.phase.value, "done": p.done} for p in found]}

    return {"pages": pages, "look": look}


def decode_commands(worker: DecodeWorker) -> Mapping[str, Command]:
    layers = worker.pool.shape.layers

    async def pages() -> dict[str, Any]:
        return {**count(worker.pages), "requests": len(worker.requests)}

    async def look(request: int | None = None) -> dict[str, Any]:
        """Phase and pages of every request, or of one."""
        found = [r for r in worker.requests.values() if request in (None, r.key)]
        held = [
            {"request": r.key, "phase": r.phase.value, "pages": r.pages, "prompt": len(r.job.prompt)} for r in found
        ]
        return {"requests": held}

    async def sums(pages: list[int]) -> dict[str, Any]:
        """Checksums and states of these pages, whichever request holds them."""
        return {
            "sums": [worker.pool.checksum(page, 0, layers) for page in pages],
            "states": [worker.pages.state(page).value for page in pages],
        }

    async def interrupt(landed: int, signal: int, pids: dict[str, int]) -> dict[str, Any]:
        """Send the signal to the writer of the first landing that has this many valid spans and still lacks some.
        `pids` maps the writers' incarnations to process ids."""
        hit: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        def strike(request: DecodeRequest, landing: OpenLanding) -> None:
            valid, spans = landing.landed
            if hit.done() or str(landing.writer) not in pids or not landed <= valid < spans:
                return
            os.kill(pids[str(landing.writer)], signal)
            missing = [p for p, mask in zip(landing.pages, landing.valid, strict=True) if not mask]
            hit.set_result(
                {
                    "request": request.key,
                    "landed": valid,
                    "spans": spans,
                    "writer": landing.writer,
                    "pages": landing.pages,
                    "missing": missing,  # pages into which no span has landed
                }
            )

        with watched(worker.landings, strike):
            return await hit

    return {"pages": pages, "look": look, "sums": sums, "interrupt": interrupt}


@contextmanager
def watched(landings: Landings, look: Callable[[DecodeRequest, OpenLanding], None]) -> Iterator[None]:
    """Call `look` each time spans of a landing have arrived and been checked."""
    spans = landings.spans
    arrived = spans.arrived

    def arrived_and_seen(request: DecodeRequest, landing: OpenLanding, *rest: Any) -> None:
        arrived(request, landing, *rest)
        look(request, landing)

    spans.arrived = arrived_and_seen  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        spans.arrived = arrived  # type: ignore[method-assign]


def count(pages: PagePool) -> dict[str, Any]:
    """Count the states page by page; `agree` says whether the pool's own counters give the same numbers."""
    states = Counter(pages.state(page).value for page in range(pages.pages))
    counts = pages.counts()
    own = {name: getattr(counts, name) for name in ("free", "cached", "in_use", "landing", "quarantined")}
    return {
        "states": dict(states),
        "pool": pages.pages,
        "agree": own == {name: states[name] for name in own} and counts.total == pages.pages,
    }
