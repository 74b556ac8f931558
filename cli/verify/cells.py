"""The meshes that `baton verify` starts: cells of settings that must not change a bit of any answer.

A small set of cells covers all pairs of settings. It is drawn from a seed, so that every run checks the same cells;
`--full` checks the whole product. A CPU and a GPU have separate covers, because two numerics classes cannot be
compared."""

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
    "workers": (1, 2),  # workers of each tier
    "cache": (True, False),  # prefix cache
    "speculation": ("off", "draft", "lookup"),
}
FACTORS: Mapping[
    str, Factors
] = {  # by device; the levels of `path` depend on the machine (cli/verify/bodies.py, cli/verify/gpu.py)
    "cpu": {"transport": ("shm", "tcp"), "decode_page": (0, 16, 64), **SHARED},
    "cuda": {"transport": ("cuda_ipc", "nccl"), "decode_page": (0,), **SHARED},  # these transports convert no pages
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
    path: str  # way to compute and the body that prefill runs: pairs:avx2
    decode_page: int = 0  # tokens of a page at decode; 0: as at prefill, whose pages `page` is about

    def __post_init__(self) -> None:
        for name, levels in FACTORS[self.device].items():
            if getattr(self, name) not in levels:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {', '.join(map(str, levels))}")

    @property
    def pages(self) -> tuple[int, int]:
        """Tokens of a page at prefill and at decode."""
        return self.page, self.decode_page or self.page

    @property
    def device(self) -> str:
        return "cuda" if self.path.startswith("cuda-") else "cpu"

    def __str__(self) -> str:
        cache = "cache on " if self.cache else "cache off"
        shape, (mine, theirs) = f"{self.workers}P{self.workers}D", self.pages
        return (
            f"{self.path:<16} {self.transport:<4} chunk {self.chunk:>3} page {mine}>{theirs} "
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
    """Cells in which every value of a setting meets every value of every other one; equal seeds draw equal cells."""
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
