"""An event loop in a thread of its own, so that callers may have a loop of their own or none.

A notebook's loop runs already, a script has none, and neither may hold the loop that computes."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")
CLOSED = "this model is closed: open another one"
FORKED = (
    "this model was opened before the process forked, and its threads stayed behind: open it in the child, or start "
    'processes with multiprocessing.set_start_method("spawn")'
)


class LoopThread:
    """Parts of the model live in `stack`, and end with the loop."""

    def __init__(self) -> None:
        from cli.local_mesh.loop import PreciseLoop

        self.stack = AsyncExitStack()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False
        self._tasks = set[asyncio.Task[Any]]()
        self._loop = PreciseLoop()
        self._thread = threading.Thread(target=self._run, name="baton-llm", daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._closed

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:
            problem = FORKED if os.getpid() != self._pid else CLOSED if self._closed else ""
            if not problem:
                return asyncio.run_coroutine_threadsafe(self._noted(work), self._loop)
        work.close()
        raise RuntimeError(problem)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work. Ctrl-C cancels it, and waits until it has unwound."""
        ended = threading.Event()
        try:
            future = self.submit(_telling(work, ended))
        except RuntimeError:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise RuntimeError(CLOSED) from None
        except BaseException:
            if not future.done():
                future.cancel()
                ended.wait()
            raise

    def close(self) -> None:
        """End what runs, then what is open. Idempotent; a child that was forked has nothing to end."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _noted(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None, "a coroutine that is submitted runs in a task"
        self._tasks.add(task)
        try:
            return await work
        finally:
            self._tasks.discard(task)

    async def _end(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.stack.aclose()
        self.stack = AsyncExitStack()  # the one that is closed refers to what was open

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()


async def _telling(work: Coroutine[Any, Any, T], ended: threading.Event) -> T:
    try:
        return await work
    finally:
        ended.set()
