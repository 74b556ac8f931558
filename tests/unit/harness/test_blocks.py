"""The watch sees what holds the event loop, in its own thread and in another one, and nothing else."""

import asyncio
import time

import msgspec

from tests.harness.blocks import watching


def compute(seconds: float) -> None:
    """For so long by this process's own time: a neighbour may take the processor meanwhile."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


async def test_a_callback_that_computes_is_a_block() -> None:
    async with watching() as watch:
        await asyncio.sleep(0.01)
        compute(0.2)
        await asyncio.sleep(0.01)
    assert watch.longest_seconds > 0.05


async def test_a_thread_that_keeps_pythons_lock_is_a_block() -> None:
    data = b"[" + b"[1]," * 3_000_000 + b"1]"
    async with watching() as watch:
        await asyncio.to_thread(msgspec.json.decode, data)
    assert watch.longest_seconds > 0.05


async def test_waiting_is_no_block() -> None:
    async with watching() as watch:
        await asyncio.to_thread(time.sleep, 0.2)
    assert watch.longest_seconds < 0.05
