"""A mesh "on cuda" without a GPU: each file of tests/mesh/cuda runs in a process of its own, which is one test here.

They take minutes of a core, so `make gpu-emulated` runs them and `make test` keeps to the runner and the kernels."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.mesh, pytest.mark.emulated]
FOLDER = Path(__file__).parent / "cuda"
ROOT = FOLDER.parents[2]


@pytest.mark.timeout(900)
def test_a_mesh_whose_workers_have_a_gpu_is_exact_in_the_interpreter() -> None:
    assert passed("test_mesh.py") >= 5


@pytest.mark.timeout(900)
def test_cells_of_verify_are_equal_on_an_emulated_gpu_and_notice_damage() -> None:
    assert passed("test_verify.py") >= 4


def passed(file: str) -> int:
    """How many of the file's tests passed. None may fail or be skipped."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / file)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])
