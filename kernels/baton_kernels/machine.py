"""What runs where: the bodies of each operation on this machine, which are used, and how many threads share the work.

Bodies give equal bits by construction (and the self-test compares), so choosing is about speed, and about tests."""

import ctypes
import os
from collections.abc import Sequence

from baton_kernels.library import KernelError, available, load

BODIES = ("plain", "avx2", "avx512", "avx512bf16", "amx")
OPERATIONS = (
    "product.fp32",
    "product.pairs",  # up to four rows
    "product.pairs.many",
    "product.amx",
    "attention.fp32",
    "attention.pairs",
    "attention.amx",
    "rows",  # norms, rotary and page writes, gates
    "sample",
    "copy",
)


def bodies() -> dict[str, tuple[str, ...]]:
    """Per operation, the bodies that this machine can run."""
    library = load()
    return {
        operation: tuple(name for b, name in enumerate(BODIES) if library.usable(b) and library.knows(b, o))
        for o, operation in enumerate(OPERATIONS)
    }


def chosen() -> dict[str, str]:
    """Per operation, the body that is used now."""
    return {operation: BODIES[load().chosen(o)] for o, operation in enumerate(OPERATIONS)}


def has_tiles() -> bool:
    """Whether the path `amx` runs on matrix tiles here, not by emulation."""
    return not available() and "amx" in bodies()["product.amx"]


def choose(body: str | None) -> None:
    """Force one body for every operation that it knows (else avx512), or go back to the best with None."""
    if body is not None and body not in BODIES:
        raise KernelError(f"body: {body!r} is not one of {', '.join(BODIES)}")
    if not load().choose(-1 if body is None else BODIES.index(body)):
        raise KernelError(f"body: this machine cannot run {body!r}")


def forced() -> str | None:
    """The body that `choose` set, if any."""
    body = load().forced()
    return None if body < 0 else BODIES[body]


def threads() -> int:
    count: int = load().threads()
    return count


def set_threads(count: int, cores: Sequence[int] = ()) -> None:
    """How many threads share a call's work, the caller's included. `cores`, one per thread, pins all but the caller's,
    which is the first and pins itself."""
    most = 4 * (os.cpu_count() or 1) + 4
    if not 1 <= count <= most:
        raise KernelError(f"threads: {count} is not in 1..{most}")
    if cores and (len(cores) != count or not set(cores) <= os.sched_getaffinity(0)):
        allowed = sorted(os.sched_getaffinity(0))
        raise KernelError(f"cores: {list(cores)} must be one of {allowed} for each of {count} threads")
    load().set_threads(count, (ctypes.c_int32 * count)(*cores) if cores else None)
