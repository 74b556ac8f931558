"""The choice of bodies and threads: which bodies this machine can run, which it uses, how many threads share a call.

Bodies give equal bits by construction, and the self-test compares them, so the choice affects only speed."""

import ctypes
import os
from collections.abc import Sequence

from baton_kernels.library import BODIES, BODIES_OF_ARM, KernelError, available, load

OPERATIONS = (
    "product.fp32",
    "product.pairs",  # up to four rows
    "product.pairs.many",
    "product.amx",
    "product.integers",  # few rows, or groups of less than 64 inputs
    "product.integers.many",
    "attention.fp32",
    "attention.pairs",
    "attention.amx",
    "rows",  # norms, rotary and page writes, gates
    "sample",
    "copy",
)


_EMULATED = "tiles"  # the body that computes on tiles without a processor that has them


def not_built() -> tuple[str, ...]:
    """The bodies for machines of this kind that the library lacks because this processor has no use for them."""
    arm = os.uname().machine == "aarch64"
    kind = [body for body in BODIES if (body in BODIES_OF_ARM if arm else body != "neon")]
    return tuple(body for body in kind if not load().built(BODIES.index(body)))


def bodies() -> dict[str, tuple[str, ...]]:
    """The bodies that this machine can run, by operation."""
    library = load()
    return {
        operation: tuple(name for b, name in enumerate(BODIES) if library.usable(b) and library.knows(b, o))
        for o, operation in enumerate(OPERATIONS)
    }


def product_bodies(products: str) -> tuple[str, ...]:
    """The bodies that this machine can run products of a path, or of `integers`, with: the newest last, emulated tiles
    first."""
    found = bodies()["product.integers.many" if products == "integers" else f"product.{products}"]
    return tuple(sorted(found, key=lambda body: body != _EMULATED))


def chosen() -> dict[str, str]:
    """The body that is used now, by operation."""
    return {operation: BODIES[load().chosen(o)] for o, operation in enumerate(OPERATIONS)}


def has_tiles() -> bool:
    """Whether this machine has matrix tiles for the path `amx`; without them the path is emulated."""
    return not available() and "amx" in bodies()["product.amx"]


def choose(body: str | None) -> None:
    """Forces one body for every operation that it implements (avx512, avx2 or neon for the others); None returns to the
    best body."""
    if body is not None and body not in BODIES:
        raise KernelError(f"body: {body!r} is not one of {', '.join(BODIES)}")
    if body in not_built():
        raise KernelError(f"body: the library was built without {body!r}: run `python -m baton_kernels.build`")
    if not load().choose(-1 if body is None else BODIES.index(body)):
        raise KernelError(f"body: this machine cannot run {body!r}")


def forced() -> str | None:
    """The body that `choose` has forced, if any."""
    body = load().forced()
    return None if body < 0 else BODIES[body]


def threads() -> int:
    count: int = load().threads()
    return count


def set_threads(count: int, cores: Sequence[int] = ()) -> None:
    """Sets how many threads share a call's work, the caller's thread included. `cores` holds one core per thread and
    pins all threads but the first, which is the caller's and pins itself."""
    most = 4 * (os.cpu_count() or 1) + 4
    if not 1 <= count <= most:
        raise KernelError(f"threads: {count} is not in 1..{most}")
    if cores and (len(cores) != count or not set(cores) <= os.sched_getaffinity(0)):
        allowed = sorted(os.sched_getaffinity(0))
        raise KernelError(f"cores: {list(cores)} must be one of {allowed} for each of {count} threads")
    load().set_threads(count, (ctypes.c_int32 * count)(*cores) if cores else None)
