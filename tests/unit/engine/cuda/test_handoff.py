"""Two engines on a device, and pages between them: what the services join, in the interpreter and in one process."""

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.builtin import tiny
from engine.cuda.device import Gpu
from engine.cuda.loaded import CudaModel, gpu_path, load_on_device
from engine.cuda.products import products_for
from engine.formats.errors import ModelError
from engine.selftest.identity import Identity
from engine.step.plan import Drafting, Piece, Plan
from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.transfer import Span
from mesh.messages.jobs import Sampling
from mesh.messages.page_shape_checks import shape_problem
from tests.unit.kvtransfer.on_device import OpenPool

SAMPLING = Sampling(temperature=0.8, seed=4)
PROMPT = tuple(range(40, 57))
CPU = torch.device("cpu")


async def test_decode_goes_on_from_pages_that_came_layer_by_layer(folder: Any, tmp_path: Path) -> None:
    home, draft = folder("qwen2"), tiny(tmp_path / "draft", "llama3", dtype="bf16", layers=1)
    model = load_on_device(home, home.parent / "cache", CPU, path="cuda-sm90", page_tokens=16, draft=draft)
    shape = model.shape
    source, target = OpenPool(shape, 3), OpenPool(shape, 3)
    prefill, decode = (model.runner(pool.memory, threads=1, layer_group=1) for pool in (source, target))
    with tempfile.TemporaryDirectory(prefix="baton-") as made:
        transport = CudaIpc(random.SystemRandom(), folder=Path(made))
        receiver = await transport.receive(target, 2)
        writer = await transport.connect(receiver.handle(1), source, 1)
        groups = list[tuple[int, int]]()
        plan = Plan(0, (Piece(7, PROMPT, 0, (0, 2), 1, 0, SAMPLING, Drafting(0)),))
        first = (await prefill.run(plan, lambda layer, count: groups.append((layer, count)))).sampled[0][0]
        assert groups == [(2, 1), (0, 1), (1, 1)]  # the draft's come first: they need nothing of the model
        for layer, count in groups:
            spans = [Span(0, 0, 1, layer, count), Span(1, 2, 0, layer, count)]
            assert await writer.write(bytes(32), spans, 0) == target.checksums([1, 0], layer, count)
        writer.close()
        await receiver.aclose()
    rows = Piece(7, (first.token,), len(PROMPT), (0, 2), 1, 1, SAMPLING, Drafting(len(PROMPT), (), 1))
    found = decode.compute(Plan(1, (replace(rows, pages=(1, 0)),)))
    assert found == prefill.compute(Plan(1, (rows,))) and len(found.proposed[0]) == 1
    for one in (prefill, decode, source, target):
        one.close()


def test_a_page_holds_the_models_layers_and_behind_them_the_drafts(weights: Any) -> None:
    draft, identity = weights("llama3"), Identity("", "", "", "cuda-sm90")
    model, products = weights("qwen2"), products_for(identity.path)
    plain, drafted = (CudaModel(model, identity, 16, products, one) for one in (None, draft))
    (first,), (again, behind) = plain.shape.segments, drafted.shape.segments
    assert again == first and (behind.layers, behind.layer_bytes) == (2, 2 * 2 * 16 * 16 * 2)
    assert (behind.tiles, behind.dtype, behind.content) == ("gpu-v1", "bf16", draft.model_hash[:16])
    assert drafted.shape.page_bytes == plain.shape.page_bytes + 2 * 2048 and shape_problem(drafted.shape) == ""


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"vocab": 200}, "vocabulary of 200"), ({"dtype": "fp32"}, "the checkpoint is fp32 .* Convert the draft to bf16")],
)
def test_a_draft_that_cannot_go_with_the_model_is_refused(
    change: dict[str, Any], problem: str, folder: Any, tmp_path: Path
) -> None:
    draft = tiny(tmp_path / "draft", "llama3", **({"dtype": "bf16"} | change))
    with pytest.raises(ModelError, match=rf"draft: .*{problem}"):
        load_on_device(folder("qwen2"), tmp_path / "cache", CPU, path="cuda-sm90", page_tokens=16, draft=draft)


def test_a_paths_name_is_the_exact_one_or_fast() -> None:
    gpu = Gpu("a GPU", (9, 0), 1 << 30, "13.0")
    exact = ("cuda-sm90", "graph")
    assert gpu_path("auto", gpu, {}) == exact == gpu_path("fast", gpu, {"BATON_PRODUCT_PATH": "cuda-sm90"})
    assert gpu_path("fast", gpu, {}) == ("fast", "graph")
    with pytest.raises(ModelError, match=r"BATON_PRODUCT_PATH.*'pairs' is no path of a GPU"):
        gpu_path("auto", gpu, {"BATON_PRODUCT_PATH": "pairs"})


def test_a_step_runs_as_a_graph_unless_the_variable_says_eager(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("a GPU", (9, 0), 1 << 30, "13.0")
    assert gpu_path("auto", gpu, {"BATON_PRODUCT_PATH": "auto:eager"}) == ("cuda-sm90", "eager")
    with pytest.raises(ModelError, match=r"no body 'avx2'.*cuda-sm90:eager, cuda-sm90:graph"):
        gpu_path("auto", gpu, {"BATON_PRODUCT_PATH": "cuda-sm90:avx2"})
    enabled_flags = list[bool]()
    monkeypatch.setattr("engine.cuda.steps.Graphs", lambda device, *, enabled: enabled_flags.append(enabled))
    home = folder("qwen2")
    for body in ("eager", "graph"):
        model = load_on_device(
            home, home.parent / "cache", torch.device("cpu"), path="cuda-sm90", page_tokens=16, body=body
        )
        model.runner(torch.zeros(model.shape.page_bytes, dtype=torch.uint8), threads=1).close()
    assert enabled_flags == [False, True]
