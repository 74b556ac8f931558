"""The doctor's report has stable keys, and one broken part hides no other."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cli.doctoring import doctor, doctor_report, machine
from cli.local_mesh.ports import free_address
from cli.main import build
from engine.builtin import tiny
from engine.cuda.device import Found
from mesh.config.services import GatewayConfig
from mesh.config.worker_config import DecodeConfig
from tests.families.folders import saved

KEYS = {"paths", "transports", "class", "fingerprint", "problems", "processor", "compiler", "memory", "gpu", "ports"}


@pytest.fixture
def gateway() -> GatewayConfig:
    return GatewayConfig(http_address=free_address(), grpc_address=free_address(), worker_address=free_address())


def problems(report: doctor.Report) -> str:
    return json.dumps(report["problems"])


def test_a_program_finds_every_key(gateway: GatewayConfig, tmp_path: Path) -> None:
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path))
    assert set(report) >= KEYS
    assert json.loads(json.dumps(report)) == report
    assert [transport["name"] for transport in report["transports"]] == ["shm", "rdma", "tcp"]
    assert all(transport["reason"] for transport in report["transports"])


def test_a_taken_port_is_a_problem_with_a_remedy(taken_address: str, tmp_path: Path) -> None:
    gateway = GatewayConfig(http_address=taken_address, grpc_address=free_address(), worker_address=free_address())
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path))
    assert report["ports"][taken_address] == "taken"
    assert taken_address in problems(report) and "set another address" in problems(report)


def test_a_broken_model_hides_nothing_else(gateway: GatewayConfig, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Unheard"]}')
    report = doctor.examine(gateway, DecodeConfig(model=tmp_path, cache_folder=tmp_path))
    assert report["class"] is None
    assert "config.json" in problems(report)
    assert report["transports"] and report["processor"]["cores"] > 0


def test_the_pool_of_a_model_whose_windows_alternate_holds_more_tokens_than_its_pages_would_whole(
    gateway: GatewayConfig, tmp_path: Path
) -> None:
    """One of two layers has a window of 64 tokens."""
    model = saved(tmp_path / "model", "gemma2", {"sliding_window": 64, "num_hidden_layers": 2}, dtype=torch.bfloat16)
    config = DecodeConfig(model=model, cache_folder=tmp_path, pool_pages=200, page_tokens=16, chunk_tokens=32)
    report = doctor.examine(gateway, config)
    assert report["pool"]["tokens"] == (200 - (64 + 32) // 16 - 1) * 16


def test_a_draft_that_cannot_go_with_the_model_is_a_problem_and_hides_nothing(
    gateway: GatewayConfig, tmp_path: Path
) -> None:
    model = tiny(tmp_path / "model", "llama2", dtype="bf16")
    drafts = [tiny(tmp_path / "fit", "llama2", seed=2), tiny(tmp_path / "unfit", "llama2", vocab=200)]
    fit, unfit = (
        doctor.examine(gateway, DecodeConfig(model=model, draft=draft, cache_folder=tmp_path)) for draft in drafts
    )
    assert fit["draft"] == str(drafts[0]) and fit["problems"] == []
    assert unfit["draft"] is None and "vocabulary of 200" in problems(unfit)
    assert unfit["class"] == fit["class"] is not None


def test_a_gpu_that_cannot_be_used_is_a_problem_only_where_one_is_asked_for(
    gateway: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cuda.device.find_gpu", lambda: Found(None, "no NVIDIA driver"))
    idle = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path))
    asked = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path, device="cuda"))
    assert idle["gpu"]["why_not"] == asked["gpu"]["why_not"] == "no NVIDIA driver"
    assert "NVIDIA" not in problems(idle)
    assert "no NVIDIA driver" in problems(asked) and "set device =" in problems(asked)


def test_a_transport_that_is_not_allowed_says_why(gateway: GatewayConfig, tmp_path: Path) -> None:
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path, transports=("tcp",)))
    shm = report["transports"][0]
    assert (shm["name"], shm["usable"], shm["reason"]) == ("shm", False, "not allowed by the setting transports")


def test_a_pool_larger_than_the_memory_is_a_problem(gateway: GatewayConfig, tmp_path: Path) -> None:
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path, pool_bytes=1 << 49))
    assert "set a smaller pool_bytes" in problems(report)


def test_the_machine_has_a_processor_and_memory() -> None:
    assert machine.processor()["cores"] >= 1
    facts = machine.memory()
    assert 0 < facts["available_bytes"] <= facts["total_bytes"]


def test_what_the_environment_forces_is_shown_and_a_wrong_value_is_a_problem(
    gateway: GatewayConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_PRODUCT_PATH", "pairs:none")
    report = doctor.examine(gateway, DecodeConfig(cache_folder=tmp_path))
    assert report["forced"] == "pairs:none"
    assert "BATON_PRODUCT_PATH" in problems(report) and "pairs:avx2" in problems(report)


@pytest.mark.parametrize("problems", [[], [{"problem": "a", "remedy": "b"}]])
def test_the_status_says_whether_something_is_wrong(
    problems: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda *_, **__: {"problems": problems})
    done = CliRunner().invoke(build("doctor"), ["doctor", "--json"])
    assert json.loads(done.stdout) == {"problems": problems} and done.exit_code == len(problems)


@pytest.mark.parametrize(("dtype", "shown"), [("int8", "in int8"), ("int4", "in int4, an experiment")])
def test_the_report_calls_pages_in_four_bits_an_experiment(dtype: str, shown: str) -> None:
    line = doctor_report.pool_line({"tokens": 4096, "bytes": 64 << 20, "dtype": dtype})
    assert line == f"4,096 tokens in 64 MiB per worker, keys and values {shown}"
