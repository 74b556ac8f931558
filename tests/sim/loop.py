"""An event loop whose time is virtual: when nothing is ready it jumps to the next timer instead of waiting.

A real loop fires a timer up to its clock's resolution early. With `early_seconds` this one does so too, each time."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P, T = ParamSpec("P"), TypeVar("T")


class Stuck(Exception):
    """Nothing is ready and no timer is left: a task waits for ever."""


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, early_seconds: float = 0.0) -> None:
        super().__init__()
        self._now, self._early_seconds = 0.0, early_seconds
        self._selector.select = self._jump  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def stand_still(self, seconds: float) -> None:
        """A callback that computes for so long: time passes and nothing else runs."""
        self._now += seconds

    def _jump(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer is left")
        self._now += max(timeout - self._early_seconds, 0.0)
        return []


def run_virtual(main: Coroutine[Any, Any, T], *, early_seconds: float = 0.0) -> T:
    loop = VirtualLoop(early_seconds)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def virtual(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """The coroutine runs in virtual time, on a loop of its own, and its caller gets what it returns."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtual(test(*args, **kwargs))

    return run
