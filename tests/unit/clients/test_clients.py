"""`make clients` runs the clients of its table with pinned packages, and fails where one fails or is not installed."""

import ast
import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from tests.clients.__main__ import as_json, shown
from tests.clients.environments import InstallFailed, cleared, python_of
from tests.clients.running import try_client
from tests.clients.table import CLIENTS, FOLDER, PACKAGE_JSON, RealClient

PIN = re.compile(r"[\w.-]+(\[[\w,-]+\])?==[\w.]+")
BY_NAME = {client.name: client for client in CLIENTS}


def test_every_script_and_every_list_of_pins_belongs_to_a_client() -> None:
    assert {client.script for client in CLIENTS} == set((FOLDER / "scripts").iterdir()) - {
        FOLDER / "scripts" / "__pycache__"
    }
    python = {client.requirements for client in CLIENTS if not client.node}
    assert python == set((FOLDER / "requirements").iterdir())


def test_every_package_is_pinned_to_one_version() -> None:
    for client in CLIENTS:
        if client.node:
            versions = json.loads(PACKAGE_JSON.read_text())["dependencies"].values()
            assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
            continue
        lines = [line for line in client.requirements.read_text().splitlines() if line and not line.startswith("#")]
        assert lines and all(line == "./protos" or PIN.fullmatch(line) for line in lines), client.requirements


def test_every_script_says_what_it_tries_and_asserts_something() -> None:
    for client in CLIENTS:
        assert client.tries and len(client.tries) < 120, client.name
        text = client.script.read_text()
        asserts = text.count("assert.") if client.node else len(_asserts(text))
        assert asserts >= 2, f"{client.name} has only {asserts} assertions"


def _asserts(text: str) -> list[ast.Assert]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]


async def _tried(tmp_path: Path, code: str, seconds: float = 60.0) -> str:
    client = RealClient("health", seconds=seconds)
    command = [sys.executable, "-P", "-c", code]
    out = tmp_path / "out"
    return (await try_client(client, command, http="127.0.0.1:1", grpc="127.0.0.1:2", out=out)).problem


async def test_a_script_that_ends_well_has_no_problem_and_knows_the_mesh(tmp_path: Path) -> None:
    code = (
        "import os; assert os.environ['MESH_URL'] == 'http://127.0.0.1:1' and os.environ['MESH_GRPC'] == '127.0.0.1:2'"
    )
    assert await _tried(tmp_path, code) == ""


async def test_a_script_that_fails_shows_why(tmp_path: Path) -> None:
    assert "AssertionError: 41" in await _tried(tmp_path, "assert 41 == 42, 41")
    assert await _tried(tmp_path, "raise SystemExit(3)") == "exit status 3"


async def test_a_script_that_hangs_is_ended(tmp_path: Path) -> None:
    began = asyncio.get_running_loop().time()
    assert "not done" in await _tried(tmp_path, "import time; time.sleep(600)", seconds=0.5)
    assert asyncio.get_running_loop().time() - began < 60


async def test_a_client_that_cannot_be_installed_has_failed(tmp_path: Path) -> None:
    failed = InstallFailed("no such package")
    tried = await try_client(BY_NAME["openai"], failed, http="", grpc="", out=tmp_path / "out")
    assert tried.problem == "no such package" and "FAILED" in shown(tried)
    assert as_json([tried], 1.0)["failed"] == ["openai"]


def test_a_wrong_pin_is_an_error_that_shows_the_installers_words(tmp_path: Path) -> None:
    missing = tmp_path / "nothing.txt"
    missing.write_text("./no-such-folder-here\n")

    with pytest.raises(InstallFailed, match="no-such-folder-here"):
        python_of(missing, tmp_path / "build")


def test_a_client_does_not_see_this_programs_packages_or_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    variables = cleared({"MESH_URL": "http://here"})
    assert (
        "PYTHONPATH" not in variables and "OPENAI_API_KEY" not in variables and variables["MESH_URL"] == "http://here"
    )
