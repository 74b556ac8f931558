"""The GPU kernels in Triton's interpreter, on the CPU: each agrees with its reference, and rows keep their bits.

The interpreter is chosen by the environment when triton is imported, so the tests of `triton/` run in processes of
their own, two at the same time. Each process is one test here, which shows the report when it fails."""

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

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "triton"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
SHARDS = {"attention": ["test_attention.py"], "all others": [name for name in FILES if name != "test_attention.py"]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[subprocess.Popen[bytes], Path]]]:
    """The process of every shard, and the file that receives its report."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    base = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    folder = tmp_path_factory.mktemp("interpreter")
    started = {}
    for name, files in SHARDS.items():
        report = folder / name
        with report.open("wb") as out:
            command = [*base, *(str(FOLDER / file) for file in files)]
            process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT)
        started[name] = process, report
    yield started
    for process, _ in started.values():
        process.kill()
        process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", SHARDS)
def test_kernels_agree_with_their_references_in_the_interpreter(
    shard: str, running: dict[str, tuple[subprocess.Popen[bytes], Path]]
) -> None:
    process, file = running[shard]
    status, report = process.wait(), file.read_text()
    assert status == 0, report
    passed = re.search(r"(\d+) passed", report)
    assert passed is not None and int(passed[1]) >= 5 and "skipped" not in report, report
