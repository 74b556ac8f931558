"""A child process of the gateway, for work that would hold its event loop or that may run away.

The child starts with its first task and answers one at a time. It is killed when a task exceeds its time, and the next
task starts another one. A thread per child waits for it, because a pipe of the event loop would copy megabytes there.
Memory and processor time are bounded by the function that prepares the child (gateway/helpers/child.py)."""

import asyncio
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import TypeVar

from gateway.helpers.child import Answering, read_message, write_message

Answer = TypeVar("Answer")


class HelperDied(Exception):
    """The process ended without an answer, or its answer was too long. `unread`: it has not read the whole task."""

    def __init__(self, *, unread: bool) -> None:
        super().__init__("a helper process has ended without an answer")
        self.unread = unread


class HelperProcess:
    """One child at a time; it ends with this object."""

    def __init__(self, prepare: Callable[[], Answering], *, bare: bool = False) -> None:
        """`prepare` runs in the child and returns what answers its tasks. `bare`: without environment and stderr."""
        self._prepare, self._bare = prepare, bare
        self._thread = ThreadPoolExecutor(1, prepare.__module__)
        self._running: list[subprocess.Popen[bytes]] = []  # none or one
        self._closed = False
        weakref.finalize(self, _end, self._running)

    async def ask(
        self,
        *task: bytes,
        read: Callable[[bytes], Answer],
        seconds: float | None = None,
        most_bytes: int | None = None,
    ) -> Answer:
        """Send the child a task and return what `read`, in the thread, makes of the answer. HelperDied; TimeoutError.

        After `seconds`, and when the caller is cancelled, the child is killed. Without a limit its work has bounds of
        its own: it goes on, and a cancelled caller waits for the end of the task."""
        left = Event()
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, task, read, most_bytes, left)
        try:
            in_time, _ = await asyncio.wait((work,), timeout=seconds)
        finally:
            if not work.done():
                if seconds is not None:
                    left.set()
                    self._kill()
                await asyncio.wait((work,))  # the thread is not free before
                work.exception()  # has no other reader
        if not in_time:
            raise TimeoutError
        return work.result()

    async def aclose(self) -> None:
        """End the child; a task that it works on gets no answer."""
        self._closed = True
        self._kill()
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, _end, self._running)
        except RuntimeError:  # the interpreter ends: threads take no more work
            _end(self._running)
        self._thread.shutdown(wait=False)

    def _kill(self) -> None:
        for process in self._running:
            process.kill()

    # ---- in the thread

    def _exchange(
        self, task: tuple[bytes, ...], read: Callable[[bytes], Answer], most_bytes: int | None, left: Event
    ) -> Answer:
        used = bool(self._running)
        try:
            answer = self._ask(task, most_bytes, left)
        except HelperDied:
            if not used or left.is_set() or self._closed:
                raise
            answer = self._ask(task, most_bytes, left)  # the child had ended after its last task
        return read(answer)

    def _ask(self, task: tuple[bytes, ...], most_bytes: int | None, left: Event) -> bytes:
        if not self._running:
            self._running.append(_start(self._prepare, bare=self._bare))
        process, unread = self._running[0], True
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        with suppress(OSError):
            if not left.is_set() and not self._closed:  # else nothing would kill this child
                write_message(process.stdin, *task)
                unread = False
                if answer := read_message(process.stdout, most_bytes):
                    return answer[0]
        _end(self._running)
        raise HelperDied(unread=unread)


def _start(prepare: Callable[[], Answering], *, bare: bool) -> subprocess.Popen[bytes]:
    path = {"PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-m", "gateway.helpers.child", f"{prepare.__module__}:{prepare.__name__}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if bare else None,
        env=path if bare else os.environ | path,
        start_new_session=True,  # what a terminal sends to the gateway does not reach the child
    )


def _end(running: list[subprocess.Popen[bytes]]) -> None:
    while running:
        process = running.pop()
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "both are pipes"
            with suppress(OSError):  # bytes that the process has not read
                pipe.close()
        process.wait()
