"""Running a service: its loop and its background tasks live and end together, and a worker drains before it leaves.

SIGTERM asks a worker to leave: gateways are told to send nothing new, what runs is finished, and what is left when the
grace is over goes on elsewhere, since the end of a session makes its gateway resume on another worker."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, Protocol

from mesh.attach import Attachments

GRACE_SECONDS = 30.0
LOOK_SECONDS = 0.05


class Worker(Protocol):
    attachments: Attachments

    @property
    def busy(self) -> bool:
        """Has it requests that are not done?"""

    async def run(self) -> None: ...


async def serve_worker(worker: Worker, grace_seconds: float = GRACE_SECONDS) -> None:
    """Until cancelled, or until SIGTERM and the drain after it."""
    leave = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave.set)
    serving = asyncio.ensure_future(run_together(worker.run(), worker.attachments.register()))
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
    """Wait for the wish to leave, then for the end of what runs."""
    await leave.wait()
    worker.attachments.drain()
    loop = asyncio.get_running_loop()
    end = loop.time() + grace_seconds
    while worker.busy and loop.time() < end:
        await asyncio.sleep(LOOK_SECONDS)


async def run_together(*parts: Coroutine[Any, Any, None]) -> None:
    """Until cancelled, or until one part fails: then its error is everybody's, and nothing is left running."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
