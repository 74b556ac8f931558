"""Ctrl-C and its like end a run cleanly; a second signal ends the process at once."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[asyncio.Event]:
    """The first signal sets the event and cancels this task; the ones behind it have the kernel's own effect."""
    loop, seen, task = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    assert task is not None, "a task runs this"
    running = task

    def on_signal() -> None:
        seen.set()
        for number in NUMBERS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        running.cancel()

    for number in NUMBERS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield seen
    finally:
        for number in NUMBERS:
            loop.remove_signal_handler(number)
