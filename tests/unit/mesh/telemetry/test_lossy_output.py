"""A line that cannot be written holds nothing and ends nothing: it is lost, counted, and spoken of later."""

import fcntl
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mesh.telemetry.lossy_output import LossyStderr, LossyWriter

PATIENCE_SECONDS = 60.0  # a guard against hanging: no test depends on how fast the machine is
QUICK_SECONDS = 20.0  # what would wait for a reader waits for ever
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, int]]:
    """A pipe that takes no byte more; its reader and its writer."""
    reader, writer = os.pipe()
    fill(writer)
    yield reader, writer
    for each in (reader, writer):
        os.close(each)


def fill(writer: int) -> None:
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, b"-" * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)


def read_until(reader: int, end: bytes) -> bytes:
    found = b""
    while not found.endswith(end):
        found += os.read(reader, 1 << 16)
    return found


def test_a_pipe_that_nobody_reads_holds_nobody_and_the_loss_is_said_when_it_is_read(full_pipe: tuple[int, int]) -> None:
    reader, descriptor = full_pipe
    writer = LossyWriter(most_bytes=100)
    began = time.monotonic()
    for number in range(1000):
        writer.put(descriptor, b"%09d\n" % number)
    assert time.monotonic() - began < QUICK_SECONDS and writer.lost == 990
    assert not writer.wait(0.1)
    found = read_until(reader, b"000000009\n")
    assert writer.wait(PATIENCE_SECONDS)  # what is read may still take up the room of the next line
    writer.put(descriptor, b"after\n")
    found += read_until(reader, b"after\n")
    said = re.findall(rb"lines lost: (\d+) \(nobody reads them\)\n", found)  # in parts where the writer is slow
    assert sum(map(int, said)) == 990 and writer.wait(PATIENCE_SECONDS) and writer.lost == 990


def test_lines_that_come_together_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, write, writes = LossyWriter(), os.write, list[int]()
    monkeypatch.setattr(os, "write", lambda descriptor, data: [writes.append(descriptor), write(descriptor, data)][1])
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    for number in range(1000):
        writer.put(descriptor, b"%d\n" % number)
    assert writer.wait(PATIENCE_SECONDS)
    os.close(descriptor)
    assert (tmp_path / "log").read_bytes() == b"".join(b"%d\n" % number for number in range(1000))
    assert writes.count(descriptor) < 100


def test_the_loss_is_said_once_with_its_number(tmp_path: Path) -> None:
    writer = LossyWriter()
    full = os.open("/dev/full", os.O_WRONLY)
    roomy = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    for _ in range(3):
        writer.put(full, b"lost\n")
    writer.put(roomy, b"kept\n")
    writer.put(roomy, b"too\n")
    assert writer.wait(PATIENCE_SECONDS)
    assert (tmp_path / "log").read_bytes() == b"lines lost: 3 (No space left on device)\nkept\ntoo\n"
    assert writer.lost == 3
    for each in (full, roomy):
        os.close(each)


def test_a_pipe_that_its_other_owner_made_non_blocking_loses_nothing(full_pipe: tuple[int, int]) -> None:
    reader, descriptor = full_pipe
    os.set_blocking(descriptor, False)
    writer = LossyWriter()
    writer.put(descriptor, b"x" * 200_000 + b"\n")
    assert read_until(reader, b"\n").count(b"x") == 200_000 and writer.wait(PATIENCE_SECONDS) and not writer.lost


def test_the_log_of_a_service_goes_on_though_nobody_reads_it(full_pipe: tuple[int, int]) -> None:
    """Negative control: what writes into the pipe itself waits for ever."""
    reader, descriptor = full_pipe
    writer = LossyWriter(most_bytes=1000)
    handler = logging.StreamHandler(LossyStderr(descriptor, writer))
    log = logging.Logger("service")
    log.addHandler(handler)
    began = time.monotonic()
    for number in range(2000):
        log.warning("line %d", number)
    assert time.monotonic() - began < QUICK_SECONDS
    held = threading.Thread(target=os.write, args=(descriptor, b"line\n"), daemon=True)
    held.start()
    held.join(1.0)
    assert held.is_alive()
    os.set_blocking(reader, False)
    while held.is_alive() or not writer.wait(0.1):
        with suppress(BlockingIOError):
            os.read(reader, 1 << 16)


SERVICE = """
import logging, sys, warnings
from mesh.telemetry.logs import log_lines
from mesh.telemetry.lossy_output import use_lossy_stderr
use_lossy_stderr()
log_lines("%(message)s")
for number in range(3000):
    logging.info("line %d %s", number, "x" * 100)
warnings.warn("warned")
print("printed", file=sys.stderr)
print("went on", flush=True)
raise SystemExit(int(sys.argv[1])) if sys.argv[1:] else ValueError("a defect")
"""


def service(stderr: int, *arguments: str, limit: int | None = None) -> subprocess.CompletedProcess[bytes]:
    path = os.pathsep.join(str(ROOT / name) for name in ("", "kernels", "protos"))
    command = [sys.executable, "-W", "default", "-c", SERVICE, *arguments]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -f {limit}; trap "" XFSZ; exec "$0" "$@"', *command]
    return subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=False,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"PYTHONPATH": path},
    )


@pytest.mark.parametrize("where", ["full disk", "closed pipe", "pipe that nobody reads", "file limit", "closed"])
def test_a_service_ends_with_its_own_status_wherever_its_log_goes(where: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    if where == "full disk":
        stderr = os.open("/dev/full", os.O_WRONLY)
    elif where == "file limit":
        stderr = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    else:
        stderr = os.dup(writer)
    if where == "closed pipe":
        os.close(reader)
        os.close(writer)
    if where == "pipe that nobody reads":
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        fill(writer)
    ended = service(stderr, "7", limit=8 if where == "file limit" else None)
    assert (ended.returncode, ended.stdout) == (7, b"went on\n")


def test_the_last_words_of_a_service_are_whole(tmp_path: Path) -> None:
    stderr = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    ended = service(stderr)
    lines = (tmp_path / "log").read_text().splitlines()
    assert ended.returncode == 1 and lines[2999].startswith("line 2999 ")
    assert "printed" in lines and lines[-1] == "ValueError: a defect"
