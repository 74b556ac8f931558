"""A CPU worker needs no torch: with torch and triton out of reach it loads the shipped pair and computes a step."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

UNREACHABLE = {"torch", "triton", "transformers", "safetensors"}


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in UNREACHABLE:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)


sys.meta_path.insert(0, Blocker())
try:
    import torch
except ModuleNotFoundError:
    print("blocked")

from pathlib import Path

import engine.step.batch
import engine.cpu.runner
import engine.loading.startup
from engine.builtin import DRAFT, MODEL
from engine.loading.loaded import load_on
from engine.step.plan import Drafting, Piece, Plan
from mesh.messages.jobs import Sampling

model = load_on("cpu", MODEL, Path(sys.argv[1]), product_path="auto", page_tokens=32, draft=DRAFT)
runner = model.runner(bytearray(4 * model.shape.page_bytes), threads=1)
piece = Piece(1, (5, 6, 7), 0, (2, 1), 1, 0, Sampling(max_tokens=9), Drafting(0, (), 2))
result = runner.compute(Plan(0, (piece,)))
runner.close()
print(len(result.sampled[0]), len(result.proposed[0]), sorted(UNREACHABLE & set(sys.modules)))
"""


def test_a_cpu_worker_loads_the_shipped_pair_and_computes_a_step_without_torch(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["blocked", "1 2 []"]
