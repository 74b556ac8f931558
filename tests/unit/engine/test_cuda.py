"""The GPU's runner in Triton's interpreter: its files run in a process of their own, which is one test here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "cuda"


@pytest.mark.emulated
@pytest.mark.timeout(900)
def test_the_runner_of_the_gpu_is_exact_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu", str(FOLDER)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, cwd=FOLDER.parents[3], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 10 and "skipped" not in done.stdout, done.stdout
