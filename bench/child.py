"""A process that a benchmark starts for itself, for the length of an `async with`."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def child(*command: str, ends_by: int = signal.SIGKILL, **given: Any) -> AsyncIterator[Process]:
    """`given`: pipes, environment and limit, as asyncio.create_subprocess_exec takes them."""
    process = await asyncio.create_subprocess_exec(*command, **given)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(ends_by)
        await process.wait()
