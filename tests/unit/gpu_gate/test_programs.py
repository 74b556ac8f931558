"""A launch finds the program that the gate compiled: one program serves every batch, under the gate's own key.

Triton takes an absent device of sm_90 for the current one and does everything but the launch itself. A batch that
needed a program of its own would stop a worker for seconds."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from baton_kernels.triton import GpuPageShape, attention, norm, products
from baton_kernels.triton.launch import Launch
from tests.gpu_gate.compiled import as_if_on, compile_launch

SHAPE = GpuPageShape(1, 2, 64, 16)  # the smallest kernels of the gate: 14 query heads on 2
HEADS, PAGES = 14, 512
pytestmark = pytest.mark.emulated


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Count the programs in the cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_ALWAYS_COMPILE", raising=False)
    return lambda: len(list(tmp_path.glob("*/*.cubin")))


def launched(launches: Sequence[Launch]) -> None:
    """Everything but the launch itself, in a process that remembers nothing."""
    forget(launches)
    with as_if_on(90):
        for one in launches:
            one.kernel.warmup(grid=one.grid, **one.arguments, **one.constants, **one.options)


def forget(launches: Sequence[Launch]) -> None:
    for one in launches:
        one.kernel.device_caches.clear()


def bf16(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


def product(rows: int) -> list[Launch]:
    """Launches of the product whose tile is for few rows."""
    return list(products.launches(90, bf16(rows, 64), bf16(64, 64), torch.empty(rows, 64), None, None, gated=False))


def normed(rows: int) -> list[Launch]:
    return list(norm.launches(torch.empty(rows, 64), torch.empty(64), 1e-6, bf16(rows, 64), None))


def attended(sequences: int, most_rows: int, first: int, *, split: bool) -> list[Launch]:
    """The sequences are some of more, behind the `first`."""
    rows = sequences * most_rows
    starts, counts, first_row = torch.zeros(3, first + sequences, dtype=torch.int32)[:, first:]
    floats = attention.partial_floats(rows, HEADS, SHAPE.dim, PAGES, SHAPE.page_tokens)
    return list(
        attention.launches(
            90, bf16(rows, HEADS, SHAPE.dim), torch.empty(8 * SHAPE.page_bytes, dtype=torch.uint8), SHAPE, 0,
            torch.zeros(sequences, PAGES, dtype=torch.int32), starts, counts, first_row, 0.1,
            bf16(rows, HEADS * SHAPE.dim), most_rows, torch.empty(floats) if split else None,
        )
    )  # fmt: skip


BATCHES = {
    "product": [product(rows) for rows in (1, 7, 16)],
    "norm": [normed(rows) for rows in (1, 7, 64)],
    "decode": [attended(1, 1, 0, split=True), attended(64, 1, 0, split=True), attended(5, 4, 3, split=True)],
    "prefill": [attended(1, 700, 0, split=False), attended(16, 33, 0, split=False), attended(5, 40, 3, split=False)],
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_one_program_of_the_gate_serves_every_batch(
    batches: Sequence[Sequence[Launch]], compiled: Callable[[], int]
) -> None:
    forget(batches[0])
    for launch in batches[0]:
        assert not compile_launch(launch, 90).wrong
    programs = compiled()
    assert programs == len(batches[0])
    for batch in batches:
        launched(batch)
    assert compiled() == programs


def test_another_shape_needs_a_program_of_its_own(compiled: Callable[[], int]) -> None:
    """Otherwise the test above could not fail."""
    launched(normed(3))
    before = compiled()
    launched(list(norm.launches(torch.empty(3, 80), torch.empty(80), 1e-6, bf16(3, 80), None)))
    launched(list(norm.launches(torch.empty(3, 136), torch.empty(136), 1e-6, bf16(3, 136), None)))
    assert (before, compiled()) == (1, 3)
