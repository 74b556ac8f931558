"""An event loop for one case: it costs a few microseconds, its time is virtual, and the case says what is readable.

Product code that adds readers to it is called when the case calls `readable`, so that every order of events comes from
the case's random generator."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class CaseLoop(asyncio.BaseEventLoop):
    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self
        self._readers: dict[int, Callable[[], Any]] = {}

    def time(self) -> float:
        return self._now

    def pass_seconds(self, seconds: float) -> None:
        self._now += seconds

    def turn(self) -> None:
        """Run what is ready now."""
        self.call_soon(self.stop)
        asyncio.events._set_running_loop(None)
        try:
            self.run_forever()
        finally:
            asyncio.events._set_running_loop(self)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        asyncio.events._set_running_loop(None)
        try:
            return self.run_until_complete(main)
        finally:
            asyncio.events._set_running_loop(self)

    def readable(self, fileno: int) -> bool:
        """Call the reader of this descriptor; False: it has none."""
        if (reader := self._readers.get(fileno)) is None:
            return False
        reader()
        return True

    # ---- what asyncio calls

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        fileno = fd if isinstance(fd, int) else fd.fileno()
        self._readers[fileno] = lambda: callback(*args)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd if isinstance(fd, int) else fd.fileno(), None) is not None

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the case waits for something that never comes")
        self._now += max(timeout, 0.0)
        return []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback or a task has failed, and nothing else tells the case. Tasks that are forgotten have not."""
        if "exception" in context:
            raise context["exception"]

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


@contextmanager
def case_loop() -> Iterator[CaseLoop]:
    """A loop that product code finds running. Its tasks and timers are forgotten with it."""
    loop = CaseLoop()
    asyncio.events._set_running_loop(loop)
    try:
        yield loop
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.turn()
        asyncio.events._set_running_loop(None)
        loop.close()
