"""`baton verify`'s cells on a GPU that is emulated: equal where all is well, and what is spoilt is noticed.

Graphs do nothing here, so of bodies only the telling is shown; the rest is what a GPU would run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cli.local_mesh.running import running_mesh
from cli.verify import cell_mesh
from cli.verify.cell_mesh import Tampering
from cli.verify.cells import Cell
from cli.verify.checks import Checked, Models, check
from cli.verify.drafts import ensure_draft
from cli.verify.reference import Reference
from cli.verify.requests import VerifyRequest
from engine.cuda.loaded import CudaModel, load_on_device
from engine.model.weights import open_weights
from mesh.messages.jobs import Sampling
from tests.sabotage.faults import Fault, choose_damage
from tests.sabotage.saboteur import broken_decode
from tests.sabotage.wrong_product import with_wrong_product

pytestmark = pytest.mark.mesh

CELL = Cell(
    transport="cuda_ipc", chunk=16, page=16, batch=8, workers=1, cache=False, speculation="off", path="cuda-sm90:eager"
)
GREEDY = Sampling(max_tokens=3, top_logprobs=3)
ASKS = (
    VerifyRequest((5, 6, 7, 8) * 6, GREEDY),
    VerifyRequest(tuple(range(40, 60)), replace(GREEDY, temperature=0.5, seed=3)),
    VerifyRequest((9, 4, 200), GREEDY),
)
LONGER = tuple(replace(ask, sampling=replace(ask.sampling, max_tokens=6)) for ask in ASKS[1:])
Checking = Callable[..., Any]


@pytest.fixture
def checking(folder: Path, home: Path, alone: Reference, monkeypatch: pytest.MonkeyPatch) -> Iterator[Checking]:
    from tests.mesh.cuda.emulated import emulated

    def running(mesh: Any, services: Any, *rest: Any) -> AbstractAsyncContextManager[Any]:
        return running_mesh(mesh, [emulated(service) for service in services], *rest)

    async def checked(cell: Cell, asks: Sequence[VerifyRequest], tampering: Tampering | None = None) -> Checked:
        models = Models(folder, ensure_draft(folder, home))
        return await check(cell, asks, {"cuda-sm90": alone}, models=models, tampering=tampering)

    monkeypatch.setattr(cell_mesh, "running_mesh", running)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    yield checked


async def test_a_cell_with_a_draft_model_is_equal_and_its_tiers_run_another_body_each(checking: Checking) -> None:
    done = await checking(replace(CELL, speculation="draft"), LONGER)
    assert done.equal and done.handed_off and done.speculated, done.line
    row = done.row()
    assert row["device"], row["transport"] == ("cuda", "cuda_ipc")
    assert (row["path"], row["token_mismatches"], row["logprob_mismatches"]) == ("cuda-sm90", 0, 0)
    assert row["bodies"] == {"prefill": "eager", "decode": "graph", "alone": "eager"}  # as the workers said


@pytest.mark.parametrize("checks", [False, True], ids=["served", "repaired"])
async def test_damaged_pages_are_noticed_and_with_checks_on_sent_again(
    checks: bool, checking: Checking, alone: Reference, folder: Path, tmp_path: Path
) -> None:
    weights = open_weights(folder, tmp_path / "cache", product_path="pairs")
    damages = [
        choose_damage(weights, ask.prompt, alone.answer(ask)[0].token, page_tokens=CELL.page, seed=1, on_gpu=True)
        for ask in ASKS[:2]
    ]
    fault = broken_decode(Fault(damages=tuple(damages), checks=checks), tmp_path / "fault.json")
    done = await checking(CELL, ASKS, fault)
    assert done.differing == (() if checks else (0, 1)), done.line
    assert (done.bytes_resent > 0) == checks and done.remote == len(ASKS)


def test_the_wrong_product_is_right_for_one_row_and_wrong_for_two(alone: Reference, folder: Path, home: Path) -> None:
    model = load_on_device(folder, home / "cache", torch.device("cpu"), path="cuda-sm90", page_tokens=16)
    wrong = with_wrong_product(model)
    assert isinstance(wrong, CudaModel) and wrong.identity == alone.identity
    draw = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, 96, generator=draw).bfloat16() for rows in (2, 64))
    residual = torch.randn(2, 64, generator=draw)
    right, two = torch.empty(2, 64), residual.clone()
    model.products.product(x, weight, right, None, residual)
    wrong.products.product(x, weight, two, None, two)  # in place, as the engine does it
    one = torch.empty(1, 64)
    wrong.products.product(x[:1].contiguous(), weight, one, None, residual[:1].contiguous())
    assert torch.equal(one, right[:1]) and not torch.equal(two, right)
    assert torch.allclose(two, right, atol=1e-3)
