"""Running a service: its loop and its background tasks live and end together, and a worker drains before it leaves.

SIGTERM asks a worker to leave. It asks its gateways to send no new requests and says how long it stays. What will end
by then is finished here; gateways hand the rest over to other workers. When the grace period is over it leaves anyway:
the end of its sessions makes the gateways resume what had no other place."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Protocol

from mesh.sessions.attach import Attachments

POLL_SECONDS = 0.05  # pause between two looks at whether the worker is busy


class Worker(Protocol):
    attachments: Attachments

    @property
    def busy(self) -> bool:
        """Whether requests are not done."""

    async def run(self) -> None: ...

    async def measure(self) -> None:
        """Push what it measures to its gateways."""


async def serve_worker(worker: Worker, grace_seconds: float) -> None:
    """Run a worker until the task is cancelled, or until SIGTERM has come and the drain after it is over."""
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    serving = asyncio.ensure_future(run_together(worker.run(), worker.attachments.register(), worker.measure()))
    leaving = asyncio.ensure_future(drain(worker, leave, grace_seconds))
    try:
        await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
    finally:
        serving.cancel()
        leaving.cancel()
        await asyncio.gather(serving, leaving, return_exceptions=True)


async def drain(worker: Worker, leave: asyncio.Event, grace_seconds: float) -> None:
    """Wait for `leave`, then drain: until no request is left or the grace period is over."""
    await leave.wait()
    worker.attachments.drain(grace_seconds)
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_seconds
    while worker.busy and loop.time() < end:
        await asyncio.sleep(POLL_SECONDS)


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all parts until the task is cancelled or one part fails. Then cancel the others and raise that error."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
