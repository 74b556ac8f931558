"""The share of busy cores that a process gets beside the others."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

AGAIN_SECONDS = 0.15  # the kernel lets a user change one session in a tenth of a second
TRIES = 40


def set_session(pid: int, niceness: int) -> None:
    group = Path(f"/proc/{pid}/autogroup")
    if group.exists():
        group.write_text(str(niceness))


async def stand_back(pid: int, niceness: int, session: Callable[[int, int], None] = set_session) -> None:
    """Let a process that has just begun stand back for others. Linux weighs sessions first (`autogroup`) and the
    processes of one session by their niceness, so both are set. Where the system permits neither, nothing changes."""
    if niceness <= 0:
        return
    with suppress(OSError):  # it has ended, or the kernel refuses
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + niceness)
        for _ in range(TRIES):
            try:
                session(pid, niceness)
                return
            except BlockingIOError:
                await asyncio.sleep(AGAIN_SECONDS)
