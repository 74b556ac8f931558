"""A bound for the memory of this process: beyond it an allocation raises MemoryError, and the case has failed."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fuzz import asan


@contextmanager
def memory_bound(more_bytes: int) -> Iterator[None]:
    """This process gets at most so many bytes of address space beyond what it has. AddressSanitizer reserves terabytes
    for itself, so there is no bound beside it."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if not asan.is_loaded():
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (has + more_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
