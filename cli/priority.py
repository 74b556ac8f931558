"""The share of busy cores that a process gets beside the others."""

import os
from contextlib import suppress
from pathlib import Path


def stand_back(pid: int, niceness: int, proc: Path = Path("/proc")) -> None:
    """Let a process that has just begun stand back for others. Linux weighs sessions first (`autogroup`) and the
    processes of one session by their niceness, so both are set. Where the system permits neither, nothing changes."""
    if niceness <= 0:
        return
    with suppress(OSError):  # it has ended
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + niceness)
    group = proc / str(pid) / "autogroup"
    with suppress(OSError):
        if group.exists():
            group.write_text(str(niceness))
