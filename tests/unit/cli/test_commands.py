"""Every command has help and refuses wrong settings in one line; a client needs the base dependencies only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import COMMANDS, build

ROOT = Path(__file__).resolve().parents[3]


def baton(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    clean = {key: value for key, value in os.environ.items() if not key.startswith("BATON_")}
    return subprocess.run(
        [sys.executable, "-P", "-m", "cli", *arguments],
        env=clean | {"PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )


def test_help_names_every_command() -> None:
    result = CliRunner().invoke(build(None), ["--help"])
    assert result.exit_code == 0
    assert all(name in result.output and entry.summary in result.output for name, entry in COMMANDS.items())


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "verify"])
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(build(name), [name, "--help"])
    assert result.exit_code == 0 and f"Example: baton {name}" in result.output


@pytest.mark.parametrize("tier", ["gateway", "prefill", "decode"])
def test_every_service_has_help_with_an_example(tier: str) -> None:
    result = CliRunner().invoke(build("serve"), ["serve", tier, "--help"])
    assert result.exit_code == 0 and f"Example: baton serve {tier}" in result.output


def test_help_and_a_client_import_nothing_but_the_base_dependencies() -> None:
    script = (
        "import sys; from cli.main import build; from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(build(None), ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(build('generate'), ['generate', '--help']).exit_code == 0\n"
        "assert CliRunner().invoke(build('chat'), ['chat', '--help']).exit_code == 0\n"
        "heavy = {'torch', 'numpy', 'starlette', 'uvicorn', 'uvloop', 'msgspec', 'tokenizers', 'opentelemetry'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_command_whose_packages_are_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cli.local_mesh.demo", None)
    with pytest.raises(SystemExit) as stopped:
        build("demo")
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "decode", "--set", "decode.page_token=1"], "did you mean 'page_tokens'"),
        (["serve", "gateway", "--set", "gateway.http_address=nowhere"], "'nowhere' is not host:port"),
        (["serve", "prefill", "--config", "missing.toml"], "missing.toml: cannot be read"),
        (["serve", "prefill", "--set", "model=/nonexistent"], "is not a Hugging Face model folder"),
        (["explain", "my-first", "--url", "ftp://a"], "--http 'ftp://a' is no base URL such as http"),
        (["explain", "--http", "foo"], "--http: 'foo' is neither host:port"),
        (["pages", "--http", "a:8000/v1"], "--http: 'a:8000/v1' is neither host:port"),
        (["up", "--model", "/nonexistent"], "is not a Hugging Face model folder"),
        (["up", "--prefill", "0", "--set", "gateway.local=never"], "leaves no worker to prefill"),
        (["doctor", "--set", "decode.transports=pigeons"], "'pigeons' is not one of shm, rdma, tcp"),
        (["model", "inspect", "/nonexistent"], "is not a Hugging Face model folder"),
        (["serve", "decode", "--set", "worker.device=cuda", "--set", "worker.product_path=pairs"], "one of auto, fast"),
    ],
)
def test_wrong_settings_end_with_status_two_and_one_line(arguments: list[str], message: str) -> None:
    done = baton(*arguments)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_misspelt_variable_is_refused() -> None:
    done = baton("serve", "decode", BATON_DECODE_PAGE_TOKEN="32")
    assert done.returncode == 2 and "did you mean 'BATON_DECODE_PAGE_TOKENS'" in done.stderr


def test_a_taken_port_is_refused_before_anything_starts(taken_address: str) -> None:
    done = baton("serve", "gateway", "--set", f"gateway.grpc_address={taken_address}")
    assert done.returncode == 2
    assert f"gateway.grpc_address: cannot listen on {taken_address}" in done.stderr


def test_a_request_to_no_mesh_names_the_command_that_starts_one(refusing_address: str) -> None:
    done = baton("generate", "hello", "--address", refusing_address)
    assert done.returncode == 1
    assert f"no mesh answers at {refusing_address}; start one with `baton up`" in done.stderr


def test_inspect_reports_the_contents_of_a_folder_as_json(tmp_path: Path) -> None:
    done = baton("model", "inspect", "--json", XDG_CACHE_HOME=str(tmp_path))
    facts = json.loads(done.stdout)
    assert facts["parameters"] > 0
    assert facts["page_bytes"] == 32 * facts["kv_bytes_per_token"]
