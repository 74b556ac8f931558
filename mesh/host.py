"""What this host gives a process: how much memory it may have at most."""

import os
from pathlib import Path

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes() -> int:
    """Of the machine, or its container's limit where that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = container_limit_bytes()
    return physical if limit is None else min(physical, limit)


def container_limit_bytes() -> int | None:
    """None: there is none."""
    for file in _LIMITS:
        try:
            text = Path(file).read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) < 1 << 60:  # version 1 says "no limit" with a huge number
            return int(text)
    return None
