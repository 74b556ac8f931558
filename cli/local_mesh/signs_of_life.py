"""Signs of life: how `baton up` notices that a process stands still as a whole, and its peers only see it fall silent.

Each service writes one byte a second into a pipe that it has inherited, and its supervisor looks at all pipes twice a
second. The bytes come from a thread, so a long callback does not stop them while the interpreter runs. SIGSTOP, and
native code that keeps Python's lock, stop them at once; an event loop that has not turned for a minute does so too. A
process counts as standing still only after its first byte, and only while it serves (cli/local_mesh/supervisor.py): it
may load weights for minutes. Time for which the supervisor itself did not run, as on a paused machine, is excused."""

import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from mesh.rules import RULES
from mesh.sessions.watchdog import LATE_SECONDS, LOOP_SECONDS

SIGN_SECONDS = 1.0  # between two bytes of a process
LOOK_SECONDS = 0.5  # between two looks of the supervisor
SILENT_SECONDS = RULES.lease_seconds + 3.0  # peers have left the process by then, and a session with it is no loss
READ_BYTES = 1 << 16  # all that a pipe holds


class SignsOfLife:
    """The pipe of one process, as its supervisor has it."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)  # a supervisor that does not read must not stop the service
        self.heard_seconds: float | None = None  # when the last look found a byte; None: none has found one yet

    def came(self) -> bool:
        """Whether bytes have come since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self._reader, READ_BYTES))
        return False

    def started(self) -> None:
        """The process has its end of the pipe."""
        os.close(self.writer)
        self.writer = -1

    def close(self) -> None:
        for descriptor in (self._reader, self.writer):
            if descriptor >= 0:
                os.close(descriptor)
        self._reader = self.writer = -1


class LifeJudge:
    """Says which processes stand still. `look` is called about every LOOK_SECONDS."""

    def __init__(self, now: float, silent_seconds: float = SILENT_SECONDS) -> None:
        self._before, self._silent_seconds = now, silent_seconds

    def look(self, now: float, serving: Iterable[SignsOfLife]) -> list[SignsOfLife]:
        """Those of the processes that serve which have given no sign for too long."""
        late_seconds, self._before = now - self._before - LOOK_SECONDS, now
        found = list[SignsOfLife]()
        for signs in serving:
            if signs.came():
                signs.heard_seconds = now
            elif signs.heard_seconds is not None:
                if late_seconds > LATE_SECONDS:
                    signs.heard_seconds += late_seconds
                if now - signs.heard_seconds > self._silent_seconds:
                    found.append(signs)
        return found


@contextmanager
def signs_given(descriptor: int | None, loop: AbstractEventLoop) -> Iterator[None]:
    """Give signs of life into this pipe, from a thread; None: no supervisor looks."""
    if descriptor is None:
        yield
        return
    os.set_inheritable(descriptor, False)
    turned, stopped = [loop.time()], threading.Event()

    def turns() -> None:
        turned[0] = loop.time()
        loop.call_later(SIGN_SECONDS, turns)

    loop.call_soon(turns)
    thread = threading.Thread(
        target=_give, args=(descriptor, lambda: loop.time() - turned[0], stopped), name="signs of life", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        stopped.set()


def _give(descriptor: int, still_seconds: Callable[[], float], stopped: threading.Event) -> None:
    while True:
        if still_seconds() < LOOP_SECONDS:
            with suppress(OSError):  # the pipe is full or closed: the supervisor does not read, or is gone
                os.write(descriptor, b".")
        if stopped.wait(SIGN_SECONDS):
            return
