"""The GPU kernels in Triton's interpreter, on the CPU: each agrees with its reference, and rows keep their bits.

The interpreter is chosen by the environment when triton is imported, so the tests of `triton/` run in processes of
their own. Each process is one test here, which shows the report when it fails."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = Path(__file__).parent / "triton"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
SHARDS = {"attention": ["test_attention.py"], "all others": [name for name in FILES if name != "test_attention.py"]}


@pytest.mark.emulated
@pytest.mark.timeout(900)
@pytest.mark.parametrize("shard", SHARDS)
def test_kernels_agree_with_their_references_in_the_interpreter(shard: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *(str(FOLDER / file) for file in SHARDS[shard]),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 5 and "skipped" not in done.stdout, done.stdout
