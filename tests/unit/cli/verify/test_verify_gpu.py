"""`baton verify` on a GPU, in parts: what it checks there, what it leaves out, and its workers' environment."""

from dataclasses import replace

import pytest

from cli.verify import command, gpu
from cli.verify.bodies import Roles, roles
from cli.verify.cell_mesh import settings_of
from cli.verify.cells import FACTORS, Cell, missing_pairs, pairwise_cover
from cli.verify.requests import requests_of
from cli.verify.sabotage import Sabotage
from engine.cuda import device
from engine.cuda.device import Found, Gpu
from mesh.config.settings import read_settings
from tests.sabotage.saboteur import sabotaged_cells

GPU = {**FACTORS["cuda"], "path": ("cuda-sm90:graph", "cuda-sm90:eager")}
CELL = Cell(
    transport="nccl", chunk=16, page=64, batch=8, workers=2, cache=True, speculation="lookup", path="cuda-sm90:graph"
)


@pytest.mark.parametrize("transport", [("cuda_ipc",), ("cuda_ipc", "nccl")])
def test_a_gpu_has_a_cover_of_its_own_of_what_it_can_do(transport: tuple[str, ...]) -> None:
    factors = {**GPU, "transport": transport}
    cells = pairwise_cover(command.SEED, factors)
    assert not missing_pairs(cells, factors) and len(cells) <= 16
    assert {cell.device for cell in cells} == {"cuda"}
    assert {cell.transport for cell in cells} == set(transport)


@pytest.mark.parametrize(("path", "transport"), [("pairs:avx2", "cuda_ipc"), ("cuda-sm90:graph", "shm")])
def test_a_cell_takes_the_transports_of_its_device_only(path: str, transport: str) -> None:
    with pytest.raises(ValueError, match=f"transport: {transport!r}"):
        replace(CELL, path=path, transport=transport)


def test_cells_of_one_batch_on_a_gpu_ask_the_same_of_the_one_reference() -> None:
    cells = [cell for cell in pairwise_cover(command.SEED, GPU) if cell.batch == 64]
    assert len(cells) > 1 and len({requests_of(cell, command.SEED) for cell in cells}) == 1
    assert requests_of(cells[0], command.SEED) != requests_of(replace(cells[0], batch=8), command.SEED)
    assert len(requests_of(cells[0], command.SEED)) >= 64


def test_a_cell_on_a_gpu_is_a_mesh_on_cuda() -> None:
    mesh = read_settings(overrides=settings_of(CELL)).mesh()
    for worker in (mesh.prefill, mesh.decode):
        assert (worker.device, worker.product_path, worker.transports) == ("cuda", "auto", ("nccl",))


def test_on_a_gpu_each_tier_runs_a_body_of_its_own_and_the_reference_is_eager() -> None:
    assert roles("cuda-sm90:graph") == Roles("cuda-sm90", prefill="graph", decode="eager", alone="eager")
    parts = replace(roles("cuda-sm90:eager"), around=(("decode", "ONE", "1"),))
    assert parts.environment("decode") == (("BATON_PRODUCT_PATH", "cuda-sm90:graph"), ("ONE", "1"))
    assert parts.environment("prefill") == (("BATON_PRODUCT_PATH", "cuda-sm90:eager"),)


def test_two_ranks_of_nccl_take_a_gpu_each_where_there_are_two() -> None:
    assert gpu.two_ranks({"CUDA_VISIBLE_DEVICES": "3,5"}) == (
        ("prefill", "CUDA_VISIBLE_DEVICES", "3"),
        ("decode", "CUDA_VISIBLE_DEVICES", "5"),
    )
    alone = gpu.two_ranks({"CUDA_VISIBLE_DEVICES": "3"})
    assert alone == tuple((tier, "NCCL_MULTI_RANK_GPU_ENABLE", "1") for tier in ("prefill", "decode"))


@pytest.mark.parametrize("obstacle", ["", "NCCL 22809 takes one rank on a GPU"])
def test_what_a_gpu_cannot_do_is_left_out_and_said(obstacle: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Found(Gpu("a GPU", (10, 0), 1 << 30, "13.0"), "")
    monkeypatch.setattr(device, "find_gpu", lambda: found)
    monkeypatch.setattr(gpu, "nccl_obstacle", lambda: obstacle)
    here = gpu.look()
    assert here.factors["path"] == ("cuda-sm100:eager", "cuda-sm100:graph")
    assert here.factors["transport"] == (("cuda_ipc",) if obstacle else ("cuda_ipc", "nccl"))
    assert here.factors["speculation"] == ("off", "draft", "lookup")
    assert here.left_out == ((f"transport nccl: {obstacle}",) if obstacle else ())


def test_without_a_gpu_it_cannot_be_verified_and_the_command_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "find_gpu", lambda: Found(None, "no NVIDIA driver"))
    with pytest.raises(SystemExit) as ended, command.anything_else_is_unknown():
        gpu.look()
    assert ended.value.code == 2 and "no NVIDIA driver" in capsys.readouterr().err
    assert command.absent(command.Devices.ALL) == ["device cuda: no NVIDIA driver"]
    assert command.absent(command.Devices.CPU) == []


def test_a_gpu_is_sabotaged_in_decode_while_it_runs_graphs() -> None:
    cells = sabotaged_cells(Sabotage.BATCH, ("pairs", "fp32", "amx", "cuda-sm90"))
    assert [roles(cell.path).path for cell in cells] == ["pairs", "amx", "cuda-sm90"]
    assert roles(cells[-1].path).decode == "graph" and cells[-1].transport == "cuda_ipc"
    assert [roles(cell.path).path for cell in sabotaged_cells(Sabotage.PAGE, ("cuda-sm90",))] == ["cuda-sm90"]
