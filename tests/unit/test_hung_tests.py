"""A test that hangs ends with its name, also where no signal can end it (tests/conftest.py)."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import LastResort
from tests.unit.sources import ROOT

HANGS = """
import pathlib, signal, threading

def test_that_waits_where_no_signal_comes():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    pathlib.Path(__file__).with_suffix(f".{threading.get_native_id()}").touch()
    threading.Lock().acquire() and threading.Event().wait()
"""
RUN = """
import sys, pytest, tests.conftest as ours
ours.GRACE_SECONDS = 0.2
if sys.argv[2] == "without":
    ours.LastResort.begin = lambda *arguments: None
options = "-c /dev/null --rootdir / -p tests.conftest -p no:cacheprovider -q --timeout 0.2".split()
sys.exit(pytest.main([*options, sys.argv[1]]))
"""


@pytest.mark.parametrize("ends", [False, True])
def test_only_a_test_that_outlives_its_limit_ends_the_process(ends: bool) -> None:
    reading, writing = os.pipe()
    ended = threading.Event()
    statuses = list[int]()
    last_resort = LastResort(writing, lambda status: (statuses.append(status), ended.set()))
    before = set(threading.enumerate())
    last_resort.begin("test_some.py::test_one", 60.0 if ends else 0.05)
    if ends:
        (watching,) = set(threading.enumerate()) - before
        last_resort.end()
        watching.join(30.0)
        assert not watching.is_alive()
    assert ended.wait(0.0 if ends else 60.0) != ends
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    assert statuses == ([] if ends else [1])
    assert text == "" if ends else "test_some.py::test_one hangs" in text and "most recent call first" in text


def test_a_hang_that_no_signal_reaches_ends_with_the_tests_name_and_without_the_thread_it_does_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "test_made_up.py"
    file.write_text(HANGS)
    runs = [
        subprocess.Popen([sys.executable, "-c", RUN, str(file), how], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for how in ("with", "without")
    ]
    try:
        _, errors = runs[0].communicate(timeout=120)
        assert runs[0].returncode == 1 and "test_made_up.py::test_that_waits_where_no_signal_comes hangs" in errors
        while not file.with_suffix(f".{runs[1].pid}").exists():
            assert runs[1].poll() is None
            time.sleep(0.02)
        with pytest.raises(subprocess.TimeoutExpired):
            runs[1].wait(1.0)
    finally:
        for run in runs:
            run.kill()
            run.communicate()
