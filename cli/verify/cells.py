"""Which meshes `verify` starts: cells of settings that must not change a bit, and a small set that covers all pairs.

The cover is drawn from a seed, so every run checks the same cells; the full product is there for the patient."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from random import Random
from typing import Any

FACTORS: dict[str, tuple[Any, ...]] = {  # and `path`, which is the machine's matter: see bodies.py
    "transport": ("shm", "tcp"),
    "chunk": (16, 128, 512),
    "page": (16, 32, 64),
    "batch": (1, 8, 64),  # requests under way at once
    "workers": (1, 2),  # of each tier
    "cache": (True, False),  # prefix cache
    "speculation": ("off", "draft", "lookup"),
}
LEAST_CELLS = 12
_TRIES = 600  # candidates for each next cell

Pair = tuple[tuple[str, Any], tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    transport: str
    chunk: int
    page: int
    batch: int
    workers: int
    cache: bool
    speculation: str
    path: str  # with the body that prefill runs, as in pairs:avx2

    def __post_init__(self) -> None:
        for name, levels in FACTORS.items():
            if getattr(self, name) not in levels:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(map(str, levels))}")

    def __str__(self) -> str:
        cache = "cache on " if self.cache else "cache off"
        shape = f"{self.workers}P{self.workers}D"
        return (
            f"{self.path:<16} {self.transport} chunk {self.chunk:>3} page {self.page} "
            f"batch {self.batch:>2} {shape} {cache} {self.speculation:<6}"
        )

    @property
    def pairs(self) -> frozenset[Pair]:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return frozenset(combinations(values, 2))


def every_cell(paths: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(Cell(*values) for values in product(*FACTORS.values(), paths))


def every_pair(paths: Sequence[str]) -> frozenset[Pair]:
    levels = FACTORS | {"path": tuple(paths)}
    both = combinations(levels.items(), 2)
    return frozenset(((a, x), (b, y)) for (a, xs), (b, ys) in both for x, y in product(xs, ys))


def pairwise_cover(seed: int, paths: Sequence[str]) -> tuple[Cell, ...]:
    """Cells in which any two settings meet in all their combinations; the same ones for the same seed and paths."""
    random, everything = Random(seed), every_cell(paths)
    missing = set(every_pair(paths))
    chosen: list[Cell] = []
    while missing or len(chosen) < LEAST_CELLS:
        candidates = [cell for cell in random.sample(everything, _TRIES) if cell not in chosen]
        best = max(candidates, key=lambda cell: len(missing & cell.pairs))
        if missing and not missing & best.pairs:
            continue
        chosen.append(best)
        missing -= best.pairs
    return tuple(chosen)


def missing_pairs(cells: Iterable[Cell], paths: Sequence[str]) -> frozenset[Pair]:
    return every_pair(paths) - frozenset().union(*(cell.pairs for cell in cells))
