"""Every configuration that `baton envoy render` prints is accepted by the real binary, and the manual's walk works."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.envoy.command import app
from tests.harness.envoy_process import binary
from tests.unit.cli.envoy.test_render import NAMES, PEERS, SETTINGS

pytestmark = pytest.mark.mesh

ROOT = Path(__file__).resolve().parents[2]


def baton(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.stderr
    return result.stdout


def validate(file: Path) -> None:
    done = subprocess.run(
        [binary(), "--mode", "validate", "--log-level", "warning", "-c", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "deprecated" not in done.stderr.lower(), done.stdout + done.stderr


def test_envoy_accepts_the_configuration_of_every_role_without_a_warning(tmp_path: Path) -> None:
    peers = [word for peer in PEERS for word in ("--peer", peer)]
    baton("certificates", str(tmp_path / "tls"), *peers)
    everything = ("--otlp", "collector:4317", "--probe", "0.0.0.0:9902")
    for role, more in (*((role, everything) for role in NAMES), ("gateway", ())):
        own = tmp_path / "tls" / NAMES[role]
        pem = ("--certificate", f"{own}/certificate.pem", "--key", f"{own}/key.pem", "--ca", f"{own}/ca.pem")
        if more:
            secrets = tmp_path / f"{role}.secrets"
            baton("secrets", str(secrets), *pem)
            more = (*more, "--secrets", str(secrets))
        settings = [word for key, value in SETTINGS[role].items() for word in ("--set", f"{key}={value}")]
        arguments = ("render", "--role", role, "--name", NAMES[role], *pem, *peers, *settings, *more)
        file = tmp_path / f"{role}{len(more)}.yaml"
        file.write_text(baton(*arguments))
        validate(file)


def test_envoy_refuses_a_configuration_with_a_wrong_field(tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("admin: {adress: {}}\n")
    with pytest.raises(AssertionError, match="adress"):
        validate(file)


def test_the_configurations_of_the_manual_are_rendered_and_accepted(tmp_path: Path) -> None:
    """The page's own script up to the line that starts the Envoys."""
    block = re.search(r"```sh\n(PEERS=.*?)\nfor name in", (ROOT / "docs/envoy.md").read_text(), re.DOTALL)
    assert block is not None
    command = shlex.join([sys.executable, "-P", "-m", "cli"])
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    script = f'set -e\nbaton() {{ {command} "$@"; }}\n{block[1]}\n'
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("edge", "gateway", "decode-1"):
        validate_in(tmp_path, f"{name}.yaml")


def validate_in(folder: Path, name: str) -> None:
    """Paths of the page are relative to the folder in which its script runs."""
    done = subprocess.run([binary(), "--mode", "validate", "-c", name], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
