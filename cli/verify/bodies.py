"""Which product paths and bodies `verify` checks on this machine, and who runs which.

In every cell prefill, decode and the engine alone run three different bodies of one path where there are as many: pages
that one wrote are read by another, and a third says what must come out. Every body of `pairs` has its turn in
prefill and in decode. Tiles are emulated by every body but `amx`, so that path is checked where there
are none, too.

On a GPU a body is `graph` or `eager`: prefill and decode run one each, and the engine alone is always eager."""

from dataclasses import dataclass

import baton_kernels
from engine.cuda.device import BODIES as GPU_BODIES


@dataclass(frozen=True, slots=True)
class Roles:
    """A path, and the body of each who computes."""

    path: str
    prefill: str
    decode: str
    alone: str
    around: tuple[tuple[str, str, str], ...] = ()  # (tier, variable, value) that its workers need besides

    def environment(self, tier: str) -> tuple[tuple[str, str], ...]:
        """What makes a worker of this tier run its body."""
        more = tuple((name, value) for whose, name, value in self.around if whose == tier)
        return (("BATON_PRODUCT_PATH", f"{self.path}:{getattr(self, tier)}"), *more)


def bodies(path: str) -> tuple[str, ...]:
    """Those that this machine can run, the newest last."""
    return baton_kernels.bodies()[f"product.{path}"]


def paths() -> tuple[str, ...]:
    """For the cover: all bodies of `pairs`; the other paths begin with their newest."""
    return (*(f"pairs:{body}" for body in bodies("pairs")), *(f"{path}:{bodies(path)[-1]}" for path in ("fp32", "amx")))


def roles(chosen: str) -> Roles:
    """`chosen` names prefill's body."""
    path, _, body = chosen.partition(":")
    if path.startswith("cuda-"):
        return Roles(path, prefill=body, decode=next(one for one in GPU_BODIES if one != body), alone="eager")
    return turn(path, body, bodies(path))


def turn(path: str, body: str, known: tuple[str, ...]) -> Roles:
    """Decode takes the next body, and the engine alone, which computes everything once more, the newest of the rest."""
    decode = known[(known.index(body) + 1) % len(known)]
    rest = [one for one in known if one not in (body, decode)] or [body]
    return Roles(path, prefill=body, decode=decode, alone=rest[-1])


def fingerprints() -> dict[str, dict[str, str]]:
    """Per path and body; KernelError when a body differs from the plain one. Nobody else may compute meanwhile."""
    found: dict[str, dict[str, str]] = {}
    for path in baton_kernels.PATHS:
        for body in bodies(path):
            baton_kernels.choose(body)
            try:
                found.setdefault(path, {})[body] = baton_kernels.self_test(path)
            finally:
                baton_kernels.choose(None)
    return found
