"""The window into a worker process: what it holds right now, answered between two moves of its event loop.

Commands come as JSON lines on stdin and are answered on stdout, in any order. `interrupt` waits until so many spans of
a landing are valid and sends the signal in the same breath: what it reports is what decode had at that moment."""

import asyncio
import json
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from decode_svc.requests import DecodePhase
from decode_svc.worker import DecodeWorker
from engine.pages import PagePool
from prefill_svc.worker import PrefillWorker

Command = Callable[..., Awaitable[dict[str, Any]]]

LOOK_SECONDS = 0.001


def tell(event: str, **facts: Any) -> None:
    print(json.dumps({"event": event, **facts}), flush=True)


class Window:
    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until stdin ends; then so does the process."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while raw := await reader.readline():
            task = loop.create_task(self._answer(json.loads(raw)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        raise asyncio.CancelledError

    async def _answer(self, asked: dict[str, Any]) -> None:
        number, name = asked.pop("number"), asked.pop("command")
        try:
            tell("answer", number=number, **await self._commands[name](**asked))
        except Exception as error:
            tell("answer", number=number, error=repr(error))


def prefill_commands(worker: PrefillWorker) -> Mapping[str, Command]:
    async def pages() -> dict[str, Any]:
        return {**count(worker.pages), "requests": len(worker.prompts)}

    async def look() -> dict[str, Any]:
        found = worker.prompts
        return {"prompts": [{"request": p.ticket.request, "stage": p.phase.value, "done": p.done} for p in found]}

    return {"pages": pages, "look": look}


def decode_commands(worker: DecodeWorker) -> Mapping[str, Command]:
    layers = worker.pool.shape.layers

    async def pages() -> dict[str, Any]:
        return {**count(worker.pages), "requests": len(worker.requests)}

    async def look(request: int | None = None) -> dict[str, Any]:
        """DecodePhase and pages of every request, or of one."""
        found = [r for r in worker.requests.values() if request in (None, r.key)]
        held = [
            {"request": r.key, "stage": r.phase.value, "pages": r.pages, "prompt": len(r.job.prompt)} for r in found
        ]
        return {"requests": held}

    async def sums(pages: list[int]) -> dict[str, Any]:
        """What is in these pages, whoever they belong to."""
        return {
            "sums": [worker.pool.checksum(page, 0, layers) for page in pages],
            "states": [worker.pages.state(page).value for page in pages],
        }

    async def interrupt(landed: int, signal: int, pids: dict[str, int]) -> dict[str, Any]:
        while True:
            for request in worker.requests.values():
                landing = request.landing
                if request.phase is DecodePhase.LANDING and landing and str(landing.writer) in pids:
                    valid, spans = landing.landed
                    if landed <= valid < spans:
                        os.kill(pids[str(landing.writer)], signal)
                        missing = [p for p, mask in zip(landing.pages, landing.valid, strict=True) if not mask]
                        return {
                            "request": request.key,
                            "landed": valid,
                            "spans": spans,
                            "writer": landing.writer,
                            "pages": landing.pages,
                            "missing": missing,  # pages of which nothing has landed
                        }
            await asyncio.sleep(LOOK_SECONDS)

    return {"pages": pages, "look": look, "sums": sums, "interrupt": interrupt}


def count(pages: PagePool) -> dict[str, Any]:
    """Page by page, not from the pool's own bookkeeping; `agree` says whether that tells the same."""
    states = Counter(pages.state(page).value for page in range(pages.pages))
    counts = pages.counts()
    told = {name: getattr(counts, name) for name in ("free", "cached", "in_use", "landing", "quarantined")}
    return {
        "states": dict(states),
        "pool": pages.pages,
        "agree": told == {name: states[name] for name in told} and counts.total == pages.pages,
    }
