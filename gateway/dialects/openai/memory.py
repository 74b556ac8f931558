"""Keeps the memory of a gateway small after large requests: what is freed goes back to the system.

The C library keeps freed memory for itself. It maps large values apart at first, which go back when they are freed, but
raises the size from which it does so with each of them; and every thread that allocates may get an arena of its own.
Both are bounded here, and what is left goes back when it is asked for."""

import ctypes
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt's numbers of M_TRIM_THRESHOLD and so on
MAPPED_BYTES = 256 * 1024  # a value of this size is mapped apart
KEPT_BYTES = 4 * 1024 * 1024  # free memory at the end of the heap, at most
ARENAS = 2


def bound_free_memory() -> None:
    """Call it when the process starts. Does nothing under another C library."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        for parameter, value in ((_MMAP_THRESHOLD, MAPPED_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES), (_ARENA_MAX, ARENAS)):
            library.mallopt(parameter, value)


def give_back() -> None:
    """Return free memory to the system; takes milliseconds, and no lock of Python's."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
