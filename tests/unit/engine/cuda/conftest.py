"""The GPU's runner on CPU tensors: Triton's interpreter runs the same kernels, on a poisoned pool.

The interpreter must be chosen before triton is imported, so these files run in a process of their own, which
`tests/unit/engine/test_cuda.py` starts. Elsewhere they are not collected."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from engine.step.plan import Piece, Plan, Sampled
from mesh.messages.jobs import Sampling

if TYPE_CHECKING:
    from engine.cuda.weights import DeviceWeights

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
GREEDY = Sampling()


class CudaEngine:
    """A runner and the steps that tests repeat."""

    def __init__(
        self, weights: "DeviceWeights", draft: "DeviceWeights | None" = None, *, pages: int = 24, path: str = "exact"
    ) -> None:
        import torch

        from engine.cuda.page_shapes import page_shapes
        from engine.cuda.products import products_for
        from engine.cuda.runner import CudaRunner

        self.pool = torch.full((pages * page_shapes(weights, draft, 16)[0].page_bytes,), 0xFF, dtype=torch.uint8)
        self.runner = CudaRunner(weights, draft=draft, pool=self.pool, page_tokens=16, products=products_for(path))
        self.table = tuple(range(pages))

    def piece(self, tokens: Sequence[int], start: int = 0, *, sampled: int | None = None, **more: Any) -> Piece:
        count = len(tokens) if sampled is None else sampled
        fields = {"key": 1, "sampling": GREEDY if count else None, "pages": self.table} | more
        return Piece(tokens=tuple(tokens), start=start, sampled=count, **fields)

    def step(self, *pieces: Piece) -> tuple[tuple[Sampled, ...], ...]:
        return self.runner.compute(Plan(0, pieces)).sampled


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    from engine.builtin import tiny

    home, made = tmp_path_factory.mktemp("models"), dict[str, Path]()

    def make(family: str) -> Path:
        if family not in made:
            made[family] = tiny(home / family, family, dtype="bf16")
        return made[family]

    return make


@pytest.fixture(scope="session")
def weights(folder: Callable[[str], Path]) -> "Callable[[str], DeviceWeights]":
    import torch

    from engine.cuda.weights import load_weights

    made: dict[str, DeviceWeights] = {}

    def load(family: str) -> "DeviceWeights":
        if family not in made:
            made[family] = load_weights(folder(family), folder(family).parent / "cache", torch.device("cpu"))
        return made[family]

    return load


@pytest.fixture
def engine(weights: "Callable[[str], DeviceWeights]") -> Iterator[Callable[..., CudaEngine]]:
    built: list[CudaEngine] = []

    def build(family: str = "llama3", *, draft: str = "", **options: Any) -> CudaEngine:
        built.append(CudaEngine(weights(family), weights(draft) if draft else None, **options))
        return built[-1]

    yield build
    for one in built:
        one.runner.close()
