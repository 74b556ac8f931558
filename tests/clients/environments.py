"""An environment for each client, in build/clients: their requirements contradict each other, and a user has only one.

An environment is made once and again when its pins change. Nothing is skipped: what cannot be installed is an error."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.clients.table import FOLDER, PACKAGE_JSON, ROOT, RealClient

BUILD = ROOT / "build" / "clients"
INSTALL_SECONDS = 1800.0
LAST_LINES = 12
_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


class InstallFailed(Exception):
    """An environment cannot be made; the message has the last lines of the installer."""


def command_of(client: RealClient, build: Path = BUILD) -> list[str]:
    """The command that runs the client's script in its environment, which is made first if needed."""
    if client.node:
        folder = _node_folder(build)
        shutil.copy(client.script, folder)  # node looks for packages beside the script
        return ["node", str(folder / client.script.name)]
    return [str(python_of(client.requirements, build)), "-P", str(client.script)]


def cleared(variables: dict[str, str]) -> dict[str, str]:
    """The process's environment variables without those that would show the client another program's packages."""
    outside = ("PYTHON", "PIP_TARGET", "VIRTUAL_ENV", "OPENAI_", "ANTHROPIC_", "BATON_")
    return {name: value for name, value in os.environ.items() if not name.startswith(outside)} | variables


def python_of(requirements: Path, build: Path) -> Path:
    folder = build / requirements.stem
    python, stamp = folder / "bin" / "python", folder / ".installed"
    state = _state(requirements, *(ROOT / "protos").glob("pyproject.toml"), sys.version)
    if stamp.is_file() and stamp.read_text() == state:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    _run([sys.executable, *_PIP, "--python", str(python), "install", "--requirement", str(requirements)])
    stamp.write_text(state)
    return python


def _node_folder(build: Path) -> Path:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise InstallFailed(f"{program} is not installed; this client needs Node.js 20 or newer, with npm")
    folder = build / "node"
    stamp, state = folder / ".installed", _state(PACKAGE_JSON)
    if stamp.is_file() and stamp.read_text() == state:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(PACKAGE_JSON, folder)
    _run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", str(folder)])
    stamp.write_text(state)
    return folder


def _state(*parts: Path | str) -> str:
    texts = [part.read_text() if isinstance(part, Path) else part for part in (*parts, str(FOLDER))]
    return hashlib.blake2b("\0".join(texts).encode(), digest_size=16).hexdigest()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,  # a pin may name a folder of the repository
            env=cleared({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise InstallFailed(f"not done after {INSTALL_SECONDS:.0f} s: {' '.join(command)}") from None
    if done.returncode:
        lines = done.stdout.decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        raise InstallFailed("\n".join([f"failed: {' '.join(command)}", *lines]))
