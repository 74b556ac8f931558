"""Runs one slice as a process group of its own, which ends with this process, even by kill -9.

Its stderr goes to a file, so that a runner which says a lot costs no memory; a failure's story is the end of it."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.local_mesh.orphan import die_with
from tests.proofs.sources import ROOT

STORY_BYTES = 4000
LOG_BYTES = 1 << 20  # kept in the file of a failure
TERM_SECONDS = 30.0  # for a runner to end its processes, before it is killed


@dataclass(frozen=True, slots=True)
class SliceRun:
    status: int
    report: dict[str, Any] = field(default_factory=dict)  # the last line of stdout
    log: str = ""  # end of stderr
    cut: bool = False  # time was up: it has shown nothing
    seconds: float = 0.0

    @property
    def story(self) -> str:
        return self.log.replace(f"{ROOT}/", "")[-STORY_BYTES:]


Runner = Callable[[Sequence[str], float], SliceRun]  # command, longest time in seconds


def run_slice(command: Sequence[str], seconds: float) -> SliceRun:
    began, parent = time.monotonic(), os.getpid()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=out, stderr=log, start_new_session=True, preexec_fn=lambda: die_with(parent)
        )
        cut = False
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            cut, status = True, _ended(process)
        except BaseException:
            _ended(process)
            raise
        return SliceRun(status, _last_object(_end_of(out)), _end_of(log), cut, time.monotonic() - began)


def keep_log(folder: Path, name: str, run: SliceRun, command: Sequence[str]) -> Path:
    """The file with all that is kept of a failed slice."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.log"
    path.write_text(f"{' '.join(command)}\nstatus {run.status}\n{json.dumps(run.report)}\n{run.log}")
    return path


def _ended(process: "subprocess.Popen[bytes]") -> int:
    """End the group: first the runner, which stops what it started, then all that is left."""
    process.terminate()
    try:
        process.wait(TERM_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return process.wait()


def _end_of(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LOG_BYTES))
    text: str = file.read().decode(errors="replace")
    return text


def _last_object(text: str) -> dict[str, Any]:
    """The JSON object on the last line; empty when the runner ended before it had one."""
    lines = text.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
