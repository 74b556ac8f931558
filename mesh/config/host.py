"""How much memory this process may use at most: the machine's, or what its container allows."""

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """The machine's physical memory, or the container's limit if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = container_limit_bytes()
    return physical if limit is None else min(physical, limit)


def container_limit_bytes() -> int | None:
    """The memory limit that the control group sets; None without a limit."""
    for file in _LIMITS:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < 1 << 60:  # cgroup version 1 writes a huge number for "no limit"
            return int(text)
    return None
