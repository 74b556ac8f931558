"""Waiting in real time for what a test expects."""

import asyncio
from collections.abc import Callable


async def within(seconds: float, condition: Callable[[], object]) -> None:
    """Returns once the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)
