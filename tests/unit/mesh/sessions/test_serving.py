"""A worker drains before it leaves."""

import asyncio
import os
import signal

import pytest

from mesh.sessions.serving import run_together, serve_worker


class FakeAttachments:
    def __init__(self) -> None:
        self.drained = asyncio.Event()

    def drain(self, grace_seconds: float) -> None:
        self.grace_seconds = grace_seconds
        self.drained.set()

    async def register(self) -> None:
        await asyncio.get_running_loop().create_future()


class FakeWorker:
    def __init__(self) -> None:
        self.attachments = FakeAttachments()
        self.busy = True

    async def run(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def measure(self) -> None:
        await asyncio.get_running_loop().create_future()


async def test_sigterm_lets_a_worker_finish_what_it_has() -> None:
    worker = FakeWorker()
    serving = asyncio.ensure_future(serve_worker(worker, 30.0))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(worker.attachments.drained.wait(), 30)
    await asyncio.sleep(0.2)
    assert not serving.done() and worker.attachments.grace_seconds == 30.0, "gateways learn how long it stays"
    worker.busy = False
    await asyncio.wait_for(serving, 30)


async def test_a_worker_that_stays_busy_leaves_when_the_grace_period_is_over() -> None:
    worker = FakeWorker()
    serving = asyncio.ensure_future(serve_worker(worker, grace_seconds=0.1))  # type: ignore[arg-type]
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 30)
    assert worker.busy


async def test_the_failure_of_one_part_ends_all_parts() -> None:
    ended = asyncio.Event()

    async def fails() -> None:
        raise ValueError("the loop died")

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    with pytest.raises(ValueError, match="the loop died"):
        await run_together(waits(), fails())
    assert ended.is_set()
