"""Runs the blocks of one page in order: shell blocks share folder and variables, Python blocks share names.

Everything happens in a scratch folder that looks like a checkout (links to the repository's files). `make` is the
repository's, with the environment of the checker, so that no block installs anything."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.docs_check.markdown import CodeBlock, Page, Skipped, commands

ROOT = Path(__file__).resolve().parents[2]
MESH = "baton up --prefill 1 --decode 1"
MESH_READY = "The mesh serves"

_RESUME = """if [ -f {state} ]; then . {state}; cd "$(cat {folder})"; fi
"""
_SHELL = (
    """set -aeEuo pipefail
exec 3>{answer}
trap 'echo "$LINENO" >&3' ERR
"""
    + _RESUME
    + """{before}
. {block}
export -p >{state}; declare -f >>{state}; pwd >{folder}
"""
)
_MAKE = """#!/bin/sh
exec {make} --no-print-directory -C {root} VENV={venv} -o {venv}/.serve -o {venv}/.dev -o {venv}/bin/python "$@"
"""


@dataclass(frozen=True, slots=True)
class Failure:
    page: str
    line: int
    what: str


@dataclass(slots=True)
class Outcome:
    page: str
    run: int = 0  # blocks
    commands: int = 0
    seconds: float = 0.0
    skipped: list[Skipped] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class PageProcesses:
    """The processes of one page. `close` ends all of them."""

    def __init__(self, scratch: Path, seconds: float) -> None:
        self._state, self._work, self._seconds = scratch / "state", scratch / "work", seconds
        self._background: list[subprocess.Popen[bytes]] = []
        self._python: subprocess.Popen[bytes] | None = None
        self._answers: Any = None
        self._count = 0
        self._state.mkdir()
        self._work.mkdir()
        for entry in ROOT.iterdir():
            if not entry.name.startswith("."):
                (self._work / entry.name).symlink_to(entry)
        (self._work / ".venv").symlink_to(sys.prefix)
        self._environment = environment(scratch)

    def run(self, block: CodeBlock) -> Failure | None:
        if block.ready:
            return self._run_on(block)
        ok, line, output = self._run_python(block) if block.language == "python" else self._run_shell(block)
        if not ok:
            return Failure(block.page, line, last_words(output))
        missing = [text for text in block.prints if text not in output]
        return Failure(block.page, block.line, f"does not print {missing[0]!r}") if missing else None

    def start(self, program: str, ready: str, where: tuple[str, int]) -> Failure | None:
        """Start a program that runs on; return when its output has the text."""
        self._count += 1
        log = self._state / f"background-{self._count}"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-euc", program],
                cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._background.append(process)
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            if ready in log.read_text(errors="replace"):
                return None
            if process.poll() is not None:
                return Failure(*where, f"ended before it printed {ready!r}: {last_words(log.read_text())}")
            time.sleep(0.1)
        return Failure(*where, f"did not print {ready!r} within {self._seconds:.0f} s")

    def close(self) -> None:
        for process in (*self._background, *([self._python] if self._python else [])):
            with contextlib.suppress(ProcessLookupError):  # a shell that ended may have left programs behind
                os.killpg(process.pid, signal.SIGTERM)
        for process in (*self._background, *([self._python] if self._python else [])):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if self._python is not None and self._python.stdin is not None:
            self._python.stdin.close()
            self._answers.close()

    def _run_on(self, block: CodeBlock) -> Failure | None:
        resume = _RESUME.format(state=self._state / "variables", folder=self._state / "folder")
        return self.start(resume + block.text, block.ready, (block.page, block.line))

    def _run_shell(self, block: CodeBlock) -> tuple[bool, int, str]:
        self._count += 1
        file, answer = self._state / f"block-{self._count}", self._state / f"answer-{self._count}"
        file.write_text(block.text)
        script = _SHELL.format(
            answer=answer,
            state=self._state / "variables",
            folder=self._state / "folder",
            block=file,
            before=block.before,
        )
        ok, output = self._call(["bash", "-c", script])
        lines = answer.read_text().split() if answer.is_file() else []
        return ok, block.line + int(lines[0]) - 1 if lines else block.line, output

    def _call(self, command: list[str]) -> tuple[bool, str]:
        process = subprocess.Popen(
            command, cwd=self._work, env=self._environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            output, _ = process.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return False, f"{output.decode(errors='replace')}\nnot done after {self._seconds:.0f} s"
        return process.returncode == 0, output.decode(errors="replace")

    def _run_python(self, block: CodeBlock) -> tuple[bool, int, str]:
        log = self._state / "python"
        if self._python is None:
            read, write = os.pipe()
            with log.open("wb") as out:
                self._python = subprocess.Popen(
                    ["bash", "-c", f"exec 3>&{write}; exec {sys.executable} -m tests.docs_check.python_session"],
                    cwd=self._work, env=self._environment, stdin=subprocess.PIPE, stdout=out, stderr=out,
                    pass_fds=(write,), start_new_session=True,
                )  # fmt: skip
            os.close(write)
            self._answers = os.fdopen(read)
        before = log.stat().st_size if log.is_file() else 0
        assert self._python.stdin is not None
        if block.before:
            self._ask(block.page, 1, block.before)
        answer = self._ask(block.page, block.line, block.text)
        output = log.read_bytes()[before:].decode(errors="replace")
        return bool(answer["ok"]), int(answer["line"]), output

    def _ask(self, page: str, line: int, text: str) -> dict[str, Any]:
        assert self._python is not None and self._python.stdin is not None
        self._python.stdin.write(json.dumps({"page": page, "line": line, "text": text}).encode() + b"\n")
        self._python.stdin.flush()
        answer: dict[str, Any] = json.loads(self._answers.readline() or f'{{"ok": false, "line": {line}}}')
        return answer


def environment(scratch: Path) -> dict[str, str]:
    """A new user's: a home and a cache of its own, `baton` and `python` of the checker's environment."""
    venv, tools, home = Path(sys.executable).parent.parent, scratch / "tools", scratch / "home"
    tools.mkdir()
    home.mkdir()
    make = next((f"{folder}/make" for folder in ("/usr/bin", "/bin") if os.access(f"{folder}/make", os.X_OK)), "make")
    (tools / "make").write_text(_MAKE.format(make=make, root=ROOT, venv=venv))
    (tools / "make").chmod(0o755)
    outside = ("BATON_", "MAKE", "MFLAGS", "ARGS")  # what a `make docs-check ARGS=…` would hand down
    kept = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
    roots = f"{ROOT}:{ROOT}/kernels:{ROOT}/protos"
    return kept | {
        "PATH": f"{tools}:{venv}/bin:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "PYTHONPATH": ":".join(filter(None, (roots, os.environ.get("PYTHONPATH", "")))),
        "NO_COLOR": "1",
    }


def last_words(output: str) -> str:
    return " | ".join(line.strip() for line in output.strip().splitlines()[-4:])[-600:] or "no output"


def check_page(page: Page, scratch: Path, *, seconds: float, say: Callable[[str], None] = print) -> Outcome:
    """Run the page's blocks. A failure ends the page: later blocks may need what the failed one makes."""
    begun = time.monotonic()
    outcome = Outcome(page.path, failures=[Failure(page.path, line, what) for line, what in page.errors])
    runner = PageProcesses(scratch, seconds)
    try:
        if page.mesh and (failure := runner.start(MESH, MESH_READY, (page.path, 1))):
            outcome.failures.append(failure)
            return outcome
        for block in page.blocks:
            outcome.skipped += block.left_out
            if block.skip:
                first = next((line for line in block.text.splitlines() if line.strip()), "")
                outcome.skipped.append(Skipped(page.path, block.line, first.strip(), block.skip))
                continue
            say(f"{page.path}:{block.line}")
            outcome.run += 1
            outcome.commands += commands(block)
            if failure := runner.run(block):
                outcome.failures.append(failure)
                break
    finally:
        runner.close()
        outcome.seconds = round(time.monotonic() - begun, 1)
    return outcome
