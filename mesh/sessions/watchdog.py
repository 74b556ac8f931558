"""Notices that a worker makes no progress while its sessions live: a step that never ends, or an event loop that hangs.

Gateways get LongStep while a step takes long, so that they can leave the worker. When the step has passed its limit, a
thread of the worker's own ends the process, which its supervisor starts again: a thread that computes cannot be
stopped. A process that was stopped as a whole (SIGSTOP, a paused machine) is excused for that time."""

import asyncio
import faulthandler
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mesh.messages.reports import LongStep
from mesh.sessions.attach import Attachments
from mesh.sessions.step_times import StepTimes
from mesh.telemetry.lossy_output import WRITER

log = logging.getLogger("baton.watchdog")

WRITES_SECONDS = 5.0  # in which the last words are written, or not at all
MOST_MS = (1 << 32) - 1  # that a message holds
HUNG = 70  # exit status of a worker whose compute or loop hangs
LOOK_SECONDS = 1.0
LATE_SECONDS = 1.0  # a look that comes later than this shows that the process was stopped itself
LOOP_SECONDS = 60.0  # an event loop that has not turned for this time hangs


def end_process(why: str) -> None:
    last = threading.Timer(WRITES_SECONDS, os._exit, (HUNG,))
    last.daemon = True
    last.start()  # what hangs may be the pipe that the next lines write to
    log.error("%s: this process ends, so that it can be started again", why)
    WRITER.wait(WRITES_SECONDS)
    faulthandler.dump_traceback(2, all_threads=True)
    os._exit(HUNG)


class Watchdog:
    """Looks from a thread of its own, which needs neither the event loop nor the thread that computes."""

    def __init__(
        self,
        steps: StepTimes,
        *,
        clock: Callable[[], float],  # must be right in any thread
        end: Callable[[str], None] = end_process,
        look_seconds: float = LOOK_SECONDS,
        loop_seconds: float = LOOP_SECONDS,
    ) -> None:
        self._steps, self._clock, self._end = steps, clock, end
        self._look_seconds, self._loop_seconds = look_seconds, loop_seconds
        self._turned = self._looked = self._clock()  # when the event loop turned last; the last look
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def loop_turns(self) -> None:
        """The event loop calls this about once per heartbeat."""
        self._turned = self._clock()

    def _watch(self) -> None:
        self._looked = self._clock()
        while not self._stopped.wait(self._look_seconds):
            if self.look():
                return

    def look(self) -> bool:
        """Called about every `look_seconds`. True: something hangs, and the process was told to end."""
        now = self._clock()
        late_seconds, self._looked = now - self._looked - self._look_seconds, now
        if late_seconds > LATE_SECONDS:
            self._steps.excuse(late_seconds)
            self._turned += late_seconds
        elif why := self.problem(now):
            self._end(why)
            return True
        return False

    def problem(self, now: float) -> str:
        """Says what hangs; empty: nothing does."""
        running, limit = self._steps.running_seconds, self._steps.limit_seconds
        if running > limit:
            return f"a step has been computing for {running:.1f} s, its limit is {limit:.1f} s"
        if now - self._turned > self._loop_seconds:
            return f"the event loop has not turned for {now - self._turned:.1f} s"
        return ""


async def report_long_steps(
    steps: StepTimes, attachments: Attachments, *, heartbeat_seconds: float, turns: Callable[[], None] = lambda: None
) -> None:
    """Send LongStep to every gateway, once per heartbeat, while a step takes longer than that. Runs for the worker's
    life; `turns` is called once per heartbeat."""
    while True:
        await asyncio.sleep(heartbeat_seconds)
        turns()
        running, limit = steps.running_seconds, steps.limit_seconds
        if running >= heartbeat_seconds:
            for session in attachments.sessions:
                session.send(LongStep(min(int(running * 1000), MOST_MS), min(int(limit * 1000), MOST_MS)))


@contextmanager
def watched(
    steps: StepTimes, attachments: Attachments, *, heartbeat_seconds: float, ends_process: bool
) -> Iterator[None]:
    """A worker whose steps are watched by its gateways and, with `ends_process`, by a thread that ends the process."""
    watchdog = Watchdog(steps, clock=asyncio.get_running_loop().time)
    reports = report_long_steps(steps, attachments, heartbeat_seconds=heartbeat_seconds, turns=watchdog.loop_turns)
    task = asyncio.get_running_loop().create_task(reports)
    if ends_process:
        watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()
        task.cancel()
