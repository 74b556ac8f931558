"""An event loop in a thread of its own, so that callers may have a loop of their own or none.

A notebook's loop runs already, a script has none, and neither may hold the loop that computes."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        from cli.local_mesh.loop import PreciseLoop

        self._pid = os.getpid()
        self._loop = PreciseLoop()
        self._thread = threading.Thread(target=self._run, name="baton-llm", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(
                "this model was opened before the process forked, and its threads stayed behind: open it in the child, "
                'or start processes with multiprocessing.set_start_method("spawn")'
            )
        if self._loop.is_closed():
            work.close()
            raise RuntimeError("this model is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the work. Ctrl-C cancels it, and waits until it has ended."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                future.cancel()
                self.submit(asyncio.sleep(0)).result()  # the cancellation has begun
            raise

    def close(self) -> None:
        if self._loop.is_closed() or os.getpid() != self._pid:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
