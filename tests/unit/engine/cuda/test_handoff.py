"""Two engines on a device, and pages between them: what the services join, in the interpreter and in one process."""

import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cuda.device import Gpu
from engine.cuda.opened import gpu_path, open_on_device
from engine.model.errors import ModelError
from engine.plan import Piece, Plan
from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.transfer import PageShape, Span
from mesh.messages import Sampling
from tests.unit.kvtransfer.on_device import OpenPool

SAMPLING = Sampling(temperature=0.8, seed=4)
PROMPT = tuple(range(40, 64))


async def test_decode_goes_on_from_pages_that_came_layer_by_layer(folder: Any) -> None:
    home = folder("qwen2")
    model = open_on_device(home, home.parent / "cache", torch.device("cpu"), path="cuda-sm90", page_tokens=16)
    shape = PageShape(model.segments, model.layout)
    source, target = OpenPool(shape, 3), OpenPool(shape, 3)
    prefill, decode = (model.runner(pool.memory, threads=1, layer_group=1) for pool in (source, target))
    with tempfile.TemporaryDirectory(prefix="baton-") as made:
        transport = CudaIpc(random.SystemRandom(), folder=Path(made))
        receiver = await transport.receive(target, 2)
        writer = await transport.connect(receiver.handle(1), source, 1)
        groups = list[tuple[int, int]]()
        plan = Plan(0, (Piece(7, PROMPT, 0, (0, 2), 1, 0, SAMPLING),))
        first = (await prefill.run(plan, lambda layer, count: groups.append((layer, count)))).sampled[0][0]
        assert groups == [(0, 1), (1, 1)]
        for layer, count in groups:
            spans = [Span(0, 0, 1, layer, count), Span(1, 2, 0, layer, count)]
            assert await writer.write(bytes(32), spans, 0) == target.checksums([1, 0], layer, count)
        writer.close()
        await receiver.aclose()
    piece = Piece(7, (first.token,), len(PROMPT), (0, 2), 1, 1, SAMPLING)
    moved = Piece(7, (first.token,), len(PROMPT), (1, 0), 1, 1, SAMPLING)
    assert decode.compute(Plan(1, (moved,))) == prefill.compute(Plan(1, (piece,)))
    for one in (prefill, decode, source, target):
        one.close()


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
    told = list[bool]()
    monkeypatch.setattr("engine.cuda.runner.Graphs", lambda device, *, enabled: told.append(enabled))
    home = folder("qwen2")
    for body in ("eager", "graph"):
        model = open_on_device(
            home, home.parent / "cache", torch.device("cpu"), path="cuda-sm90", page_tokens=16, body=body
        )
        model.runner(torch.zeros(model.page_bytes, dtype=torch.uint8), threads=1).close()
    assert told == [False, True]
