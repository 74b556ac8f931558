"""Measures how late an event loop runs a timer that is due: what blocks the loop delays every request as much."""

import asyncio
from collections.abc import Callable

TICK_SECONDS = 1.0  # each tick takes a core from the threads of a step


async def watch_delay(observe: Callable[[float], None], tick_seconds: float = TICK_SECONDS) -> None:
    """Observe the delay of one timer after the other, until the task is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + tick_seconds
        await asyncio.sleep(tick_seconds)
        observe(max(0.0, loop.time() - due))
