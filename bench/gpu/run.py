"""`python -m bench.gpu.run`: everything that a machine with a GPU can show, in under nine minutes.

Each section is a process with a time limit of its own: when one fails, hangs or takes the device down, the others still
run, and its figures up to then count. The run writes one JSON file and one Markdown table; its status is 1 when a
section failed or a target was missed. `bench/gpu/run.sh` prepares a bare machine and calls this."""

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.command import say
from bench.gpu.figures import Section, as_json, markdown, pytest_figures, read_lines
from bench.gpu.room import room
from engine.cuda.device import find_gpu

ROOT = Path(__file__).resolve().parents[2]
TOTAL_SECONDS = 530.0


@dataclass(frozen=True, slots=True)
class SectionRun:
    name: str
    module: tuple[str, ...]  # arguments of python -m
    seconds: float  # time limit


PYTEST = (
    "pytest",
    "-q",
    "-rs",
    "-p",
    "no:cacheprovider",
    "-W",
    "default",
)  # warnings of another release are not failures
CONFORMANCE = (
    "tests/unit/kvtransfer/test_conformance.py",
    "tests/unit/kvtransfer/test_conformance_two_sided.py",
    "-k",
    "cuda_ipc or nccl",
)
ABREAST = 8  # test processes at once: most of their time goes into compiling kernels
RUNS = (  # the most important sections come first: the last ones may find no time left
    SectionRun("gate", ("bench.gpu.section", "gate"), 60),
    SectionRun("tests", (*PYTEST, "-m", "gpu", "tests/gpu"), 120),
    SectionRun("exactness", ("bench.gpu.section", "exactness"), 90),
    SectionRun("kernels", ("bench.gpu.section", "kernels"), 130),
    SectionRun("steps", ("bench.gpu.section", "steps"), 80),
    SectionRun("mesh", ("bench.gpu.section", "mesh"), 220),
    SectionRun("verify", ("bench.gpu.section", "verify"), 180),  # cell by cell: cells that were checked count
    SectionRun("transports", (*PYTEST, *CONFORMANCE), 60),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.run", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "bench/results", help="folder of the two files")
    parser.add_argument("--only", nargs="+", choices=[work.name for work in RUNS], help="some sections")
    parser.add_argument("--json", action="store_true", help="end stdout with the JSON object")
    parser.add_argument("--dry", action="store_true", help="no GPU: tiny shapes in Triton's interpreter, no tests")
    parser.add_argument("--total-seconds", type=float, default=TOTAL_SECONDS)
    arguments = parser.parse_args()
    found = find_gpu()
    if found.why_not and not arguments.dry:
        sys.exit(f"bench.gpu.run: no usable GPU: {found.why_not}; --dry shows that the code runs")
    chosen = [_here(work) for work in RUNS if not arguments.only or work.name in arguments.only]
    if arguments.dry:
        chosen = [
            SectionRun(work.name, (*work.module, "--dry"), work.seconds) for work in chosen if "bench" in work.module[0]
        ]
    began = perf_counter()
    sections = list[Section]()
    peers = ["bench.gpu.peers"] if not arguments.dry and any(work.name == "kernels" for work in chosen) else []
    with room(), beside(peers):
        for work in chosen:
            left = arguments.total_seconds - (perf_counter() - began)
            sections.append(carry_out(work, min(work.seconds, left), dry=arguments.dry))
    about = _about(sections, dry=arguments.dry)
    report = as_json(about, sections) | {"seconds": perf_counter() - began}
    name = f"gpu-{'dry-' if arguments.dry else ''}{about['date']}"
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (arguments.out / f"{name}.md").write_text(markdown(about, sections))
    say(f"{arguments.out / name}.json and .md")
    if arguments.json:
        print(json.dumps(report))
    sys.exit(1 if report["failed"] else 0)


def _here(work: SectionRun) -> SectionRun:
    """Runs tests in several processes if pytest-xdist is installed and there are cores for them."""
    many = min(ABREAST, len(os.sched_getaffinity(0)) // 2)
    if work.name != "tests" or many < 2 or importlib.util.find_spec("xdist") is None:
        return work
    return SectionRun(work.name, (*work.module, "-n", str(many)), work.seconds)


@contextmanager
def beside(modules: Sequence[str]) -> Iterator[None]:
    """Runs these modules as processes beside the sections, ignores their output, and ends them afterwards."""
    quiet = subprocess.DEVNULL
    started = [
        subprocess.Popen([sys.executable, "-m", one], cwd=ROOT, stdout=quiet, stderr=quiet, start_new_session=True)
        for one in modules
    ]
    try:
        yield
    finally:
        for process in started:
            _end(process)


def carry_out(work: SectionRun, seconds: float, *, dry: bool) -> Section:
    """Runs one section. Afterwards its process and all its children are gone, whatever happened."""
    if seconds < 5:
        return Section(work.name, (), (), 0.0, "no time was left for it")
    say(f"{work.name} (at most {seconds:.0f} s)")
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if dry else {})
    began, problem = perf_counter(), ""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [sys.executable, "-m", *work.module]
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, env=environment, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            problem = f"cut off after {seconds:.0f} s"
        else:
            problem = f"status {status}" if status else ""
        finally:
            _end(process)
        lines, said = _lines(out), _lines(err)
    if problem and (last := [line for line in (*said, *lines) if line.strip()][-3:]):
        problem += ": " + " / ".join(line.strip()[:200] for line in last)
    figures, notes = read_lines(lines)
    for figure in figures:
        say(f"  {figure.name}: {figure.value:.4g} {figure.unit} {figure.target}{' MISSED' if figure.missed else ''}")
    for text in (*notes, *([f"FAILED: {problem}"] if problem else [])):
        say(f"  {text}")
    if "pytest" in work.module:
        counts, skips = pytest_figures(lines)
        figures, notes = (*figures, *counts), (*notes, *skips)
        for text in skips:
            say(f"  {text}")
    return Section(work.name, figures, notes, perf_counter() - began, problem)


def _end(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.wait()


def _lines(file: Any) -> list[str]:
    file.seek(0)
    return str(file.read()).splitlines()


def _about(sections: Sequence[Section], *, dry: bool) -> dict[str, Any]:
    import torch
    import triton

    gpu = find_gpu().gpu
    limits = [figure for one in sections for figure in one.figures if figure.unit in ("GB/s", "TFLOP/s")]
    return {
        "date": datetime.date.today().isoformat(),
        "real": not dry,
        "gpu": f"{gpu.name}, {gpu.memory_bytes >> 30} GiB" if gpu and not dry else "a CPU, in Triton's interpreter",
        "capability": gpu.capability if gpu and not dry else None,
        "software": f"torch {torch.__version__}, CUDA {torch.version.cuda}, triton {triton.__version__}",
        "limits": ", ".join(f"{one.name} {one.value:.0f} {one.unit}" for one in limits) or "nothing",
        "command": "bench/gpu/run.sh",
    }


if __name__ == "__main__":
    main()
