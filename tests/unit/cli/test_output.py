"""A line that cannot be written is lost, counted and spoken of later; it ends nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.output import say


def test_a_full_disk_costs_lines_and_the_loss_is_said_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("first")
        say("second")
    with (tmp_path / "log").open("w") as roomy:
        monkeypatch.setattr(sys, "stderr", roomy)
        say("third")
        say("fourth")
    assert (tmp_path / "log").read_text() == "lines lost: 2 (No space left on device)\nthird\nfourth\n"


def test_a_closed_pipe_does_not_end_the_process() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "from cli.output import say\nsay('lost')\nsay('lost')\nprint('went on')"
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writer, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stdout) == (0, b"went on\n")
