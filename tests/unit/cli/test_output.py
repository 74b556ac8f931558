"""A line that cannot be written is lost, counted and spoken of later; it ends nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli import output
from cli.output import say
from mesh.telemetry.lossy_output import LossyWriter

PATIENCE_SECONDS = 120.0  # a guard against hanging: no test depends on how fast the machine is


def test_a_full_disk_costs_lines_and_the_loss_is_said_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output, "WRITER", LossyWriter())  # other tests have lost lines of the process's own
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("first")
        say("second")
    with (tmp_path / "log").open("w") as roomy:
        monkeypatch.setattr(sys, "stderr", roomy)
        say("third")
        say("fourth")
    assert (tmp_path / "log").read_text() == "lines lost: 2 (No space left on device)\nthird\nfourth\n"


def test_a_pipe_that_nobody_reads_holds_the_command_for_a_moment_only(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    script = "from cli.output import say, write, write_reasoning\nfor _ in range(99): say('lost')\n"
    script += "write_reasoning('lost')\nwrite('answer')"
    ended = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writer, check=False, timeout=PATIENCE_SECONDS
    )
    for each in (reader, writer):
        os.close(each)
    assert (ended.returncode, ended.stdout) == (0, b"answer")


@pytest.mark.parametrize("command", [["--help"], ["doctor"], ["up", "--help"]])
@pytest.mark.parametrize("where", ["closed pipe", "full disk"])
def test_a_command_whose_output_cannot_be_written_ends_without_a_traceback(command: list[str], where: str) -> None:
    reader, stdout = os.pipe()
    os.close(reader)
    if where == "full disk":
        os.close(stdout)
        stdout = os.open("/dev/full", os.O_WRONLY)
    ended = subprocess.run(
        [sys.executable, "-m", "cli", *command],
        stdout=stdout,
        stderr=subprocess.PIPE,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    os.close(stdout)
    said = "" if where == "closed pipe" else "baton: the output cannot be written: No space left on device\n"
    assert (ended.returncode, ended.stderr.decode()) == (1, said)


def test_a_closed_pipe_does_not_end_the_process() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = "from cli.output import say\nsay('lost')\nsay('lost')\nprint('went on')"
    ended = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writer, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stdout) == (0, b"went on\n")
