"""Lines for stderr that never hold the program which writes them: a thread writes, and what it cannot write is lost.

A pipe that nobody reads blocks the thread alone; lines wait for it up to MOST_BYTES, and further ones are lost. A full
disk and a closed pipe cost the lines that come meanwhile. The loss is counted, and said once there is room again."""

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, takewhile
from typing import TextIO

MOST_BYTES = 1 << 20  # that wait for the thread
GATHER_SECONDS = 0.02  # for which lines wait behind others
EXIT_SECONDS = 2.0  # in which the last lines are written at the end of the process, or not at all
NOT_READ = "nobody reads them"


class LossyWriter:
    """One thread that writes the lines of a process, in the order in which they come. To wake it costs the caller more
    than its line, so after each write the thread lets further lines gather."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.lost = 0  # lines since the start
        self._most_bytes, self._bytes = most_bytes, 0
        self._lines: deque[tuple[int, bytes]] = deque()  # descriptor and line; the first ones are being written
        self._unsaid, self._cause = 0, ""  # lost lines of which no line has said so yet
        self._changed = threading.Condition()
        self._idle, self._waiting = False, 0  # whether the thread waits for a line; who waits for the thread
        self._thread: threading.Thread | None = None

    def put(self, descriptor: int, line: bytes) -> None:
        """Write this line to the descriptor as soon as it takes it. Never waits, never raises."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lossy output", daemon=True)
                self._thread.start()
                atexit.register(self.wait, EXIT_SECONDS)
            if self._bytes + len(line) > self._most_bytes:
                self.lose(NOT_READ)
                return
            self._lines.append((descriptor, line))
            self._bytes += len(line)
            if self._idle:
                self._idle = False
                self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all lines are written or lost; False: they are not after this time."""
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(lambda: not self._lines, seconds)
            finally:
                self._waiting -= 1

    def lose(self, cause: str, lines: int = 1) -> None:
        """Count lines that are lost; the next one that can be written says so."""
        with self._changed:
            self.lost += lines
            self._unsaid, self._cause = self._unsaid + lines, cause

    def _next(self) -> tuple[int, list[bytes]]:
        """The lines for the descriptor of the first one, up to a line for another descriptor."""
        descriptor = self._lines[0][0]
        return descriptor, [line for _, line in takewhile(lambda each: each[0] == descriptor, self._lines)]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._idle = True
                    self._changed.wait()
                (descriptor, lines), unsaid = self._next(), self._unsaid
                notice = [f"lines lost: {unsaid} ({self._cause})\n".encode()] if unsaid else []
            written, problem = write_lines(descriptor, notice + lines)
            with self._changed:
                self._unsaid -= unsaid if written else 0
                if problem:
                    self.lose(problem, len(notice + lines) - max(written, len(notice)))
                for line in lines:
                    self._lines.popleft()
                    self._bytes -= len(line)
                if self._waiting:
                    self._changed.notify_all()
            time.sleep(GATHER_SECONDS)


def write_lines(descriptor: int, lines: Sequence[bytes]) -> tuple[int, str]:
    """Returns how many lines are written as a whole, and why not all."""
    size, problem = write_some(descriptor, b"".join(lines))
    written = sum(end <= size for end in accumulate(map(len, lines)))
    return written, "" if problem is None else problem.strerror or str(problem)


def write_all(descriptor: int, data: bytes) -> None:
    """OSError: not all of it could be written."""
    if (problem := write_some(descriptor, data)[1]) is not None:
        raise problem


def write_some(descriptor: int, data: bytes) -> tuple[int, OSError | None]:
    """Past Python's buffers, which would keep what they could not write and fail again with it at the exit. Who has
    the descriptor too may have made it non-blocking. Returns how many bytes are written, and why not all."""
    done = 0
    with memoryview(data) as rest:
        while done < len(rest):
            try:
                done += os.write(descriptor, rest[done:])
            except BlockingIOError:
                waits = select.poll()
                waits.register(descriptor, select.POLLOUT)
                waits.poll()
            except OSError as error:
                return done, error
    return done, None


WRITER = LossyWriter()


class LossyStderr(io.TextIOBase):
    """Stands for `sys.stderr` in a service: lines that Python code writes there go through the writer."""

    def __init__(self, descriptor: int, writer: LossyWriter = WRITER) -> None:
        self._descriptor, self._writer, self._begun = descriptor, writer, ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        with suppress(OSError):
            return os.isatty(self._descriptor)
        return False

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._put(line + "\n")
        return len(text)

    def flush(self) -> None:
        if self._begun:
            line, self._begun = self._begun, ""
            self._put(line)

    def _put(self, line: str) -> None:
        self._writer.put(self._descriptor, line.encode(errors="backslashreplace"))


def use_lossy_stderr() -> None:
    """From now on, stderr never holds and never ends this process. Native code still writes there directly."""
    try:
        descriptor = sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # a file in memory, or none
        return
    stderr: TextIO = LossyStderr(descriptor)  # type: ignore[assignment]
    sys.stderr = stderr
