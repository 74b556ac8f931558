"""Which meshes `verify` starts: cells of settings that must not change a bit, and a small set that covers all pairs.

The cover is drawn from a seed, so every run checks the same cells; the full product is there for the patient. Cells of
a CPU and of a GPU are covers of their own: two numerics classes have nothing to compare."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import combinations, product
from random import Random
from typing import Any

Factors = Mapping[str, tuple[Any, ...]]

SHARED: Factors = {
    "chunk": (16, 128, 512),
    "page": (16, 32, 64),
    "batch": (1, 8, 64),  # requests under way at once
    "workers": (1, 2),  # of each tier
    "cache": (True, False),  # prefix cache
    "speculation": ("off", "draft", "lookup"),
}
FACTORS: Mapping[str, Factors] = {  # by device; and `path`, which is the machine's matter: see bodies.py and gpu.py
    "cpu": {"transport": ("shm", "tcp"), **SHARED},
    "cuda": {"transport": ("cuda_ipc", "nccl"), **SHARED},
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
        for name, levels in FACTORS[self.device].items():
            if getattr(self, name) not in levels:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(map(str, levels))}")

    @property
    def device(self) -> str:
        return "cuda" if self.path.startswith("cuda-") else "cpu"

    def __str__(self) -> str:
        cache = "cache on " if self.cache else "cache off"
        shape = f"{self.workers}P{self.workers}D"
        return (
            f"{self.path:<16} {self.transport:<4} chunk {self.chunk:>3} page {self.page} "
            f"batch {self.batch:>2} {shape} {cache} {self.speculation:<6}"
        )

    @property
    def pairs(self) -> frozenset[Pair]:
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return frozenset(combinations(values, 2))


def every_cell(factors: Factors) -> tuple[Cell, ...]:
    return tuple(Cell(**dict(zip(factors, values, strict=True))) for values in product(*factors.values()))


def every_pair(factors: Factors) -> frozenset[Pair]:
    both = combinations(((field.name, factors[field.name]) for field in fields(Cell)), 2)
    return frozenset(((a, x), (b, y)) for (a, xs), (b, ys) in both for x, y in product(xs, ys))


def pairwise_cover(seed: int, factors: Factors) -> tuple[Cell, ...]:
    """Cells in which any two settings meet in all their combinations; the same ones for the same seed and factors."""
    random, everything = Random(seed), every_cell(factors)
    missing, chosen = set(every_pair(factors)), list[Cell]()
    while missing or len(chosen) < LEAST_CELLS:
        candidates = [cell for cell in random.sample(everything, min(_TRIES, len(everything))) if cell not in chosen]
        best = max(candidates, key=lambda cell: len(missing & cell.pairs))
        if missing and not missing & best.pairs:
            continue
        chosen.append(best)
        missing -= best.pairs
    return tuple(chosen)


def missing_pairs(cells: Iterable[Cell], factors: Factors) -> frozenset[Pair]:
    return every_pair(factors) - frozenset().union(*(cell.pairs for cell in cells))
