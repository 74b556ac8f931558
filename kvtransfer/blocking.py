"""Blocking work in a thread, under an event loop that may cancel the task that waits for it.

A running copy cannot be stopped, and its source must not change meanwhile, so a cancelled task waits for the end of the
copy (`finish`). A connection that is ready too late is closed (`finish_or_discard`). A call that waits for another
process is ended from outside (`attend`)."""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")
_LOOK_SECONDS = 0.05


async def finish(executor: Executor, call: Callable[[], T]) -> T:
    """The call's result. A cancellation is raised after the call has ended, or at once if it has not begun."""
    work = executor.submit(call)
    future = asyncio.wrap_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        if not work.cancel():
            await settled([future])
        raise


async def finish_or_discard(executor: Executor, call: Callable[[], T], discard: Callable[[T], None]) -> T:
    """The call's result. A cancellation is raised at once; a result that comes later is given to `discard`."""
    work = executor.submit(call)
    try:
        return await asyncio.shield(asyncio.wrap_future(work))
    except asyncio.CancelledError:
        if not work.cancel():
            work.add_done_callback(lambda done: None if done.exception() else discard(done.result()))
        raise


async def attend(
    executor: Executor,
    call: Callable[[], T],
    *,
    look: Callable[[], None],
    end: Callable[[], None],
    seconds: float | None = None,
) -> T:
    """The call's result. `look` is called again and again meanwhile. An exception from it, the deadline or a
    cancellation makes `end` end the call, and is raised when the call has ended."""
    future = asyncio.wrap_future(executor.submit(call))
    try:
        async with asyncio.timeout(seconds):
            while not future.done():
                await asyncio.wait([future], timeout=_LOOK_SECONDS)
                if not future.done():
                    look()
    except BaseException:
        end()
        await settled([future])
        raise
    return future.result()


async def settled(futures: Iterable["asyncio.Future[Any]"]) -> None:
    """Wait for all of them, however often the caller is cancelled meanwhile."""
    left = list(futures)
    while waiting := [future for future in left if not future.done()]:
        try:
            await asyncio.wait(waiting)
        except asyncio.CancelledError:
            continue
    for future in left:
        if not future.cancelled():
            future.exception()  # looked at: no "never retrieved" warning
