"""A mesh "on cuda" without a GPU: the tests of tests/mesh/cuda run in a process of their own, which is one test
here."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed: pip install 'baton[gpu]'", allow_module_level=True)

pytestmark = pytest.mark.mesh
FOLDER = Path(__file__).parent / "cuda"
ROOT = FOLDER.parents[2]
TESTS = 9


@pytest.mark.timeout(900)
def test_a_mesh_whose_workers_have_a_gpu_is_exact_in_the_interpreter() -> None:
    paths = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": paths},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= TESTS and "skipped" not in done.stdout, done.stdout
