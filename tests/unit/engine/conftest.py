"""An engine on a poisoned pool for tests: every byte of the pool starts as NaN, in bf16 as in fp32."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import baton_kernels
from engine.cpu.runner import CpuRunner
from engine.model.forward import Product
from engine.model.page_memory import page_layout
from engine.model.weights import Floats, Weights, open_weights
from engine.step.plan import Piece, Plan, Sampled
from mesh.config.worker_config import ROUNDED
from mesh.messages.jobs import Sampling

GREEDY = Sampling(temperature=0.0)


@dataclass
class CpuEngine:
    """A runner, its pool and the few steps that tests repeat. `pages` is the block table of the only request."""

    weights: Weights
    draft: Weights | None = None
    page_tokens: int = 32
    pool_pages: int = 24
    threads: int = 2
    layer_group: int | None = None
    product: Product = baton_kernels.product
    table: tuple[int, ...] = ()
    pool: "np.ndarray[tuple[int], np.dtype[np.uint8]]" = field(init=False)
    runner: CpuRunner = field(init=False)

    def __post_init__(self) -> None:
        page_bytes = page_layout(self.weights, self.draft, self.page_tokens).page_bytes
        self.pool = np.full(self.pool_pages * page_bytes, 0xFF, np.uint8)
        self.runner = CpuRunner(
            self.weights,
            draft=self.draft,
            pool_buffer=self.pool,
            page_tokens=self.page_tokens,
            threads=self.threads,
            layer_group=self.layer_group,
            product=self.product,
        )
        self.table = self.table or tuple(range(self.pool_pages))

    def piece(
        self, tokens: Sequence[int], start: int = 0, *, sampled: int | None = None, key: int = 1, **more: object
    ) -> Piece:
        """Rows of one request, all of them sampled unless `sampled` is given."""
        count = len(tokens) if sampled is None else sampled
        fields = {"sampling": GREEDY if count else None, "pages": self.table} | more
        return Piece(key=key, tokens=tuple(tokens), start=start, sampled=count, **fields)  # type: ignore[arg-type]

    def logits(self, tokens: Sequence[int], *, chunk: int | None = None, start: int = 0) -> Floats:
        """The logits of every row, computed in chunks: [tokens, vocab]."""
        size = chunk or len(tokens)
        parts = [
            self.runner.compute_logits(Plan(0, (self.piece(tokens[first : first + size], start + first),)))[0]
            for first in range(0, len(tokens), size)
        ]
        return np.concatenate(parts)

    def generate(self, prompt: Sequence[int], count: int, sampling: Sampling = GREEDY) -> list[Sampled]:
        """Computes the prompt in one chunk, then generates a token at a time."""
        out: list[Sampled] = []
        tokens, start = list(prompt), 0
        for position in range(count):
            piece = self.piece(tokens, start, sampled=1, position=position, sampling=sampling)
            out.extend(self.runner.compute(Plan(position, (piece,))).sampled[0])
            tokens, start = [out[-1].token], start + len(tokens)
        return out


Build = Callable[..., CpuEngine]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Build]:
    """Builds engines on a model folder and perhaps a draft's; the rest goes to `CpuEngine`. `product_path`: also int8
    or int4, to which the weights are rounded."""
    made: list[CpuEngine] = []

    def build(
        folder: Path, *, draft: Path | None = None, product_path: str = "auto", kv: str = "own", **options: object
    ) -> CpuEngine:
        how = {"quantize": product_path} if product_path in ROUNDED else {"product_path": product_path}
        how["kv"] = kv
        weights = open_weights(folder, tmp_path / "cache", **how)
        drafting = None if draft is None else open_weights(draft, tmp_path / "cache", **how)
        made.append(CpuEngine(weights, drafting, **options))  # type: ignore[arg-type]
        return made[-1]

    yield build
    for one in made:
        one.runner.close()


@pytest.fixture
def words() -> Callable[..., list[int]]:
    """Random token ids, the same for the same seed."""

    def draw(count: int, seed: int = 0, vocab: int = 262) -> list[int]:
        return [int(token) for token in np.random.default_rng(seed).integers(0, vocab, count)]

    return draw
