"""The classes and bodies that `baton verify` checks on this machine, and the body that each process runs.

In every cell prefill, decode and the reference run three different bodies of one path, where the path has three: one
writes pages, another reads them, a third computes the expected answer. Every body of `pairs` has its turn in prefill
and in decode. All bodies of `amx` but `amx` itself emulate tiles, so this path is checked on processors without tiles
too.

On a GPU a body is `graph` or `eager`: prefill and decode run one each, and the reference is always eager."""

from collections.abc import Mapping
from dataclasses import dataclass

import baton_kernels
from engine.cuda.device import BODIES as GPU_BODIES

# Ways to compute on a CPU, each with answers of its own, and the settings that choose them.
WAYS: Mapping[str, Mapping[str, str]] = {
    **{path: {"product_path": path} for path in baton_kernels.PATHS},
    **{f"kv-{kv}": {"kv_dtype": kv} for kv in baton_kernels.KV if kv != baton_kernels.OWN},
    "int8": {"quantize": "int8"},
    "int8-amx": {"quantize": "int8", "product_path": "auto-amx"},
    "int4": {"quantize": "int4"},
}


@dataclass(frozen=True, slots=True)
class Roles:
    """A way to compute, and the body that each tier and the reference run on it."""

    path: str  # name of a way in WAYS, or of a path on a GPU
    prefill: str
    decode: str
    alone: str
    around: tuple[tuple[str, str, str], ...] = ()  # further environment of workers: (tier, variable, value)

    def environment(self, tier: str) -> tuple[tuple[str, str], ...]:
        """The environment that makes a worker of this tier run its body."""
        more = tuple((name, value) for owner, name, value in self.around if owner == tier)
        path = WAYS.get(self.path, {"product_path": self.path}).get("product_path", "auto")
        return (("BATON_PRODUCT_PATH", f"{path}:{getattr(self, tier)}"), *more)


def bodies(way: str) -> tuple[str, ...]:
    """Bodies that this machine can run such products with, the newest last."""
    return baton_kernels.product_bodies(products(way))


def products(way: str) -> str:
    """The kernels that multiply matrices."""
    return "integers" if "quantize" in WAYS[way] else WAYS[way].get("product_path", "pairs")


def paths() -> tuple[str, ...]:
    """The levels of the factor `path`: all bodies of `pairs`, and the newest body of each other way."""
    others = (f"{way}:{bodies(way)[-1]}" for way in WAYS if way != "pairs")
    return (*(f"pairs:{body}" for body in bodies("pairs")), *others)


def roles(chosen: str) -> Roles:
    """Roles of a cell, whose `path` names prefill's body (pairs:avx2)."""
    path, _, body = chosen.partition(":")
    if path.startswith("cuda-"):
        return Roles(path, prefill=body, decode=next(other for other in GPU_BODIES if other != body), alone="eager")
    return turn(path, body, bodies(path))


def turn(path: str, body: str, known: tuple[str, ...]) -> Roles:
    """Decode runs the next body, and the reference, which computes everything once more, the newest of the rest."""
    decode = known[(known.index(body) + 1) % len(known)]
    rest = [other for other in known if other not in (body, decode)] or [body]
    return Roles(path, prefill=body, decode=decode, alone=rest[-1])


def fingerprints() -> dict[str, dict[str, str]]:
    """Fingerprints by path and body; KernelError when a body differs from the plain one. It switches the body of the
    whole process, so nothing else may compute meanwhile."""
    found: dict[str, dict[str, str]] = {}
    for path in (*baton_kernels.PATHS, "integers"):  # those of pages in eight bits are attention's, of these paths
        for body in baton_kernels.product_bodies(path):
            baton_kernels.choose(body)
            try:
                found.setdefault(path, {})[body] = baton_kernels.self_test(path)
            finally:
                baton_kernels.choose(None)
    return found
