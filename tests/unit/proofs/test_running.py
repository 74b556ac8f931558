"""Slices in real processes: they end with their parent, and a kill -9 leaves a file from which the next run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.proofs.running import LOG_BYTES, STORY_BYTES, run_slice
from tests.proofs.sources import ROOT

DRIVER = """
import sys, time
from pathlib import Path
from tests.proofs.ledger import ProofLedger
from tests.proofs.rounds import Rounds
from tests.proofs.running import run_slice
from tests.unit.proofs.worlds import proof

folder, slow = Path(sys.argv[1]), int(sys.argv[2])
program = "import sys, time, pathlib, os; first = int(sys.argv[1]); " \\
    "pathlib.Path(sys.argv[2], f'{first}.pid').write_text(str(os.getpid())); " \\
    "time.sleep(60 if first == int(sys.argv[3]) else 0); print('{}')"
command = lambda part, progress: [sys.executable, "-c", program, str(part.first), str(folder), str(slow)]
proofs = {"seeds": proof(wanted=50, command=command)}
ledger = ProofLedger.load(folder / "proofs.json", {"seeds": 50})
rounds = Rounds(proofs, {"seeds": "s"}, ledger, run_slice, time.monotonic, lambda: "now", "here", folder / "failures")
print(rounds.run(300.0))
"""


def drive(folder: Path, slow: int) -> "subprocess.Popen[str]":
    roots = os.pathsep.join(str(ROOT / each) for each in (".", "kernels", "protos"))
    return subprocess.Popen(
        (sys.executable, "-c", DRIVER, str(folder), str(slow)),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": roots},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(path: Path) -> int:
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.02)
    return int(path.read_text())


def wait_for_end(pid: int) -> None:
    status, end = Path(f"/proc/{pid}/stat"), time.monotonic() + 30
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, "a process of the slice outlived it"
        time.sleep(0.02)


def test_a_run_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    killed = drive(tmp_path, slow=20)
    child = wait_for(tmp_path / "20.pid")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    wait_for_end(child)
    row = json.loads((tmp_path / "proofs.json").read_text())["proofs"]["seeds"]
    assert row["done"] == 20 and row["ranges"] == [[0, 20]]
    assert drive(tmp_path, slow=-1).communicate()[0].strip() == "3"
    row = json.loads((tmp_path / "proofs.json").read_text())["proofs"]["seeds"]
    assert row["done"] == 50 and row["ranges"] == [[0, 50]]


def test_a_slice_gives_its_last_object_and_a_bounded_story() -> None:
    program = "import sys; print('first'); print('{\"a\": 1}'); sys.stderr.write('x' * 3_000_000 + 'end'); sys.exit(1)"
    run = run_slice([sys.executable, "-c", program], 60.0)
    assert (run.status, run.report, run.cut) == (1, {"a": 1}, False)
    assert run.story.endswith("xend") and len(run.story) == STORY_BYTES and len(run.log) == LOG_BYTES


def test_a_slice_whose_time_is_up_is_ended_with_all_that_it_started() -> None:
    started = "p = subprocess.Popen(['sleep', '60']); print(p.pid, file=sys.stderr, flush=True)"
    program = f"import subprocess, sys, time; {started}; time.sleep(60)"
    run = run_slice([sys.executable, "-c", program], 1.0)
    assert run.cut and run.report == {}
    wait_for_end(int(run.log))
