"""Lines for stderr that never hold the program which writes them: a thread writes, and what it cannot write is lost.

A pipe that nobody reads blocks the thread alone; lines wait for it up to MOST_BYTES, and further ones are lost. A full
disk and a closed pipe cost the lines that come meanwhile. The loss is counted, and said once there is room again."""

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TextIO

MOST_BYTES = 1 << 20  # that wait for the thread
EXIT_SECONDS = 2.0  # in which the last lines are written at the end of the process, or not at all
NOT_READ = "nobody reads them"


class LossyWriter:
    """One thread that writes the lines of a process, in the order in which they come."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.lost = 0  # lines since the start
        self._most_bytes, self._bytes = most_bytes, 0
        self._lines: deque[tuple[int, bytes]] = deque()  # descriptor and line; the first one is being written
        self._unsaid, self._cause = 0, ""  # lost lines of which no line has said so yet
        self._changed = threading.Condition()
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
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait until all lines are written or lost; False: they are not after this time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lines, seconds)

    def lose(self, cause: str) -> None:
        """Count a line that is lost; the next one that can be written says so."""
        with self._changed:
            self.lost += 1
            self._unsaid, self._cause = self._unsaid + 1, cause

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines:
                    self._changed.wait()
                (descriptor, line), unsaid = self._lines[0], self._unsaid
                notice = f"lines lost: {unsaid} ({self._cause})\n" if unsaid else ""
            said, problem = 0, ""
            try:
                if notice:
                    write_all(descriptor, notice.encode())
                    said = unsaid
                write_all(descriptor, line)
            except OSError as error:
                problem = error.strerror or str(error)
            with self._changed:
                self._unsaid -= said
                if problem:
                    self.lose(problem)
                self._lines.popleft()
                self._bytes -= len(line)
                self._changed.notify_all()


def write_all(descriptor: int, data: bytes) -> None:
    """Past Python's buffers, which would keep what they could not write and fail again with it at the exit. Who has
    the descriptor too may have made it non-blocking."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:
            waits = select.poll()
            waits.register(descriptor, select.POLLOUT)
            waits.poll()


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
