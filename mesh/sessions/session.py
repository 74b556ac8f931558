"""One session: a stream between two incarnations with heartbeats and a lease, each end measuring on its own clock.

Streams, landings and held pages die with their session. The end of a session proves nothing about the other process:
it says only that this end hears it no more. An end whose own loop was late (it was stopped, or starved) first renews
the lease, then judges. The timers are those of "Sessions and timers" in docs/protocol.md."""

import asyncio
import logging
from collections.abc import Callable

from mesh.messages.message import Heartbeat, Message
from mesh.network.interface import Stream, StreamClosed
from mesh.rules import Rules

log = logging.getLogger("baton.session")

TURN_SECONDS = 0.0002  # time in which messages are handled before others have a turn on the loop


class BadMessage(ValueError):
    """The other end sent what no service of this version sends; its session ends, and nothing else is harmed."""


def refuse(problem: str) -> None:
    """End the session with a peer that sends what no service of this version sends; empty: nothing is wrong."""
    if problem:
        raise BadMessage(problem)


class Session:
    def __init__(
        self, stream: Stream, *, rules: Rules, name: str, on_activity: Callable[[], None] = lambda: None
    ) -> None:
        """`on_activity` is called before each message is handled."""
        self.stream, self._on_activity = stream, on_activity
        self.name = name
        self.ended = False
        self.expired = False  # the lease ended it
        self.ended_there = False  # the other end closed it, or it broke
        self.given_up = False  # that came while this end was stopped: the other one may have heard nothing for a lease
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self.heard_seconds = self._sent = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def send(self, message: Message) -> None:
        if not self.ended:
            self._sent = self._loop.time()
            self.stream.send(message)

    async def run(self, on_message: Callable[[Message], None]) -> None:
        """Hand messages over until the session ends: either end closes it, a message is bad, or the lease expires."""
        self.heard_seconds, clock, busy_seconds = self._loop.time(), self._loop.time, 0.0
        self._schedule()
        try:
            while True:
                message = await self.stream.receive()
                if self.ended:
                    break
                self.heard_seconds = began = clock()
                if not isinstance(message, Heartbeat):
                    self._on_activity()
                    on_message(message)
                    busy_seconds += clock() - began
                    if busy_seconds > TURN_SECONDS:
                        busy_seconds = 0.0
                        await asyncio.sleep(0)
        except StreamClosed:
            self.ended_there = not self.ended
            self.given_up = self.ended_there and clock() - self._due > self._rules.late_seconds
        except BadMessage as fault:
            log.error("session with %s ends: %s", self.name, fault)
        except Exception:
            log.exception("session with %s ends: this worker cannot handle a message", self.name)
        finally:
            self.close()

    def close(self) -> None:
        self.ended = True
        if self._timer:
            self._timer.cancel()
        self.stream.close()

    def _schedule(self) -> None:
        self._due = self._loop.time() + self._rules.heartbeat_seconds
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        """Once per heartbeat: judge the other end by its lease, and show it that this end lives."""
        now = self._loop.time()
        if now - self._due > self._rules.late_seconds:
            self.heard_seconds = now
        if now - self.heard_seconds > self._rules.lease_seconds:
            self.expired = True
            log.warning("session with %s ends: it has sent nothing for %.1f s", self.name, now - self.heard_seconds)
            self.close()
            return
        if now - self._sent >= self._rules.heartbeat_seconds * 0.5:
            self.send(Heartbeat())
        self._schedule()
