"""Fixtures of the kernel tests: every body of this machine in turn, random arrays, poisoned pages."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

import baton_kernels as bk
from baton_kernels import reference
from baton_kernels.arrays import Array
from baton_kernels.machine import BODIES

if bk.available():
    raise RuntimeError(bk.available())


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Each test starts with two threads and the best bodies."""
    bk.set_threads(2)
    yield
    bk.choose(None)
    bk.set_threads(1)


@dataclass
class Bits:
    """Runs a computation under every usable body with 1, 2 and 3 threads, and asserts equal bits."""

    emulated: bool = False  # with emulated tiles: of integer products nothing else emulates them

    def same(self, compute: Callable[[], Array]) -> Array:
        usable = {body for found in bk.bodies().values() for body in found}
        assert {"plain", "avx2"} <= usable, "run `python -m baton_kernels.build`, which builds every body"
        bk.choose("plain")
        expected = compute()
        for body in [*(b for b in BODIES if b in usable and (self.emulated or b != "tiles")), None]:
            bk.choose(body)
            for threads in (1, 3):
                bk.set_threads(threads)
                got = compute()
                assert np.array_equal(got.view(np.uint8), expected.view(np.uint8)), (
                    f"{body} with {threads} threads differs from plain"
                )
        bk.choose(None)
        bk.set_threads(2)
        return expected


@pytest.fixture
def bits() -> Bits:
    return Bits()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@dataclass
class PoisonedPages:
    """A pool in which every byte that no kernel has written is NaN. `form`: a path, or path+kv."""

    form: str
    page_tokens: int
    kv_heads: int
    dim: int
    pages: int
    layers: int = 2

    def __post_init__(self) -> None:
        self.path, _, kv = self.form.partition("+")
        self.kv = kv or bk.OWN
        self.layer = bk.layer_bytes(self.path, self.page_tokens, self.kv_heads, self.dim, self.kv)
        self.stride = self.layer * self.layers
        self.pool = np.full(self.stride * self.pages, 0xFF, np.uint8)  # NaN as fp32, as bf16 and as a scale

    def write(
        self,
        qkv: Array,
        heads: int,
        tables: Array,
        sequence: Array,
        slots: Array,
        cos: Array | None,
        sin: Array | None,
    ) -> Array:
        """Writes rows of (sequence, slot) to layer 1; returns q."""
        page_of = tables[sequence, slots // self.page_tokens].astype(np.int64) * self.stride + self.layer
        q = np.full((len(slots), heads, self.dim), np.nan, np.float32)
        bk.rotate_write(
            self.path,
            qkv,
            heads,
            self.kv_heads,
            self.dim,
            cos,
            sin,
            slots,
            page_of,
            (slots % self.page_tokens).astype(np.int32),
            self.page_tokens,
            self.pool,
            q,
            kv=self.kv,
        )
        return q

    def read(self, table: Array, slots: int) -> tuple[Array, Array]:
        """Reads K and V [slots, kv_heads, dim] of one sequence from layer 1."""
        shape = (self.kv_heads, self.page_tokens, self.dim)
        layers = [
            self.pool[p * self.stride + self.layer : (p + 1) * self.stride]
            for p in table[: -(-slots // self.page_tokens)]
        ]
        if self.kv == bk.OWN:
            parts = [reference.read_page(self.path, each, *shape) for each in layers]
        else:
            parts = [reference.read_codes(self.kv, each, *shape) for each in layers]
        return np.concatenate([k for k, _ in parts])[:slots], np.concatenate([v for _, v in parts])[:slots]


@pytest.fixture
def pages() -> type[PoisonedPages]:
    return PoisonedPages
