"""The GPU kernels in Triton's interpreter, on the CPU: each agrees with its reference, and rows keep their bits.

The interpreter is chosen by the environment when triton is imported, so the tests of `triton/` run in processes of
their own, two beside each other; each of them is one test here, which shows their report when they fail."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: pip install 'baton[gpu]'", allow_module_level=True)

FOLDER = Path(__file__).parent / "triton"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
SHARDS = {"attention": ["test_attention.py"], "all others": [name for name in FILES if name != "test_attention.py"]}


@pytest.fixture(scope="module")
def running() -> Iterator[dict[str, subprocess.Popen[str]]]:
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    base = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu"]
    started = {
        name: subprocess.Popen(
            [*base, *(str(FOLDER / file) for file in files)],
            env=environment,
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, files in SHARDS.items()
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("shard", SHARDS)
def test_kernels_agree_with_their_references_in_the_interpreter(
    shard: str, running: dict[str, subprocess.Popen[str]]
) -> None:
    report, _ = running[shard].communicate()
    assert running[shard].returncode == 0, report
    passed = re.search(r"(\d+) passed", report)
    assert passed is not None and int(passed[1]) >= 5 and "skipped" not in report, report
