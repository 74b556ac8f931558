"""Ends requests at their own deadlines, and as soon as it is clear that they would miss them.

Steps 1 and 9 of a request's life. A client whose deadline passes gets no whole answer, so every token that is
computed for it is lost, and others wait for it. An answer has at least `ChoiceRequest.least_tokens`. How long these
take follows from the pace of the request's own tokens, and before it has some from that of answers that ended last."""

import asyncio
from collections import deque
from collections.abc import Callable
from statistics import quantiles

from gateway.core.interface import ChoiceRequest
from gateway.sequencing.requests import GatewayRequest
from mesh.errors import BatonError, DeadlineExceeded

PACES = 32  # answers that ended last and whose pace counts
FRESH_SECONDS = 60.0  # an older pace says nothing about the present load
TELLING_TOKENS = 8  # fewer tokens tell no pace
SURE = 0.8  # a request is given up when it would miss its deadline even at this share of the expected time
LOOK_SECONDS = 0.2  # shortest time between two looks at one request
OTHERS_SHARE = 0.25  # share of a deadline: where the wait for others takes less, the request itself is too long


class Paces:
    """Seconds between two tokens of answers that have ended."""

    def __init__(self) -> None:
        self._last = deque[tuple[float, float]](maxlen=PACES)  # when it ended, and its pace

    def add(self, request: GatewayRequest, now: float) -> None:
        if (pace := pace_of(request)) is not None:
            self._last.append((now, pace))

    def quick(self, now: float) -> float:
        """The pace of the quickest quarter: what a new request may hope for. 0: not known."""
        paces = [pace for ended, pace in self._last if now - ended < FRESH_SECONDS]
        return quantiles(paces, n=4)[0] if len(paces) > 1 else 0.0

    def answer_seconds(self, choice: ChoiceRequest, now: float) -> float:
        """The time from the first token of this choice to its end, at least."""
        return SURE * self.quick(now) * max(0, choice.least_tokens - len(choice.emitted) - 1)


class Deadlines:
    def __init__(self, paces: Paces, end: Callable[[GatewayRequest, BatonError], None]) -> None:
        self._paces, self._end = paces, end

    def begin(self, request: GatewayRequest) -> None:
        """The request was accepted; it ends in no case before its caller has it."""
        if request.choice.deadline_seconds is not None:
            request.deadline = asyncio.get_running_loop().call_later(0.0, self._look, request)

    def ended(self, request: GatewayRequest) -> None:
        if request.deadline is not None:
            request.deadline.cancel()
        self._paces.add(request, asyncio.get_running_loop().time())

    def _look(self, request: GatewayRequest) -> None:
        loop, choice = asyncio.get_running_loop(), request.choice
        assert choice.deadline_seconds is not None, "only requests with a deadline are looked at"
        left = request.accepted_seconds + choice.deadline_seconds - loop.time()
        needed = self._needed(request, loop.time())
        if left <= 0:
            self._end(request, DeadlineExceeded("the request's deadline passed"))
        elif needed > left:
            what = f"{self._missing(request)} more tokens would take {needed:.1f} s, and {left:.1f} s are left"
            self._end(request, DeadlineExceeded(f"the deadline would pass before the end of the answer: {what}"))
        else:
            unknown = not needed and self._missing(request) > 1
            next_look = LOOK_SECONDS if unknown else max(LOOK_SECONDS, (left - needed) / 2) if needed else left
            request.deadline = loop.call_later(min(next_look, left), self._look, request)

    def _missing(self, request: GatewayRequest) -> int:
        """Tokens that the answer lacks, at least."""
        return max(0, request.choice.least_tokens - request.next_position)

    def _needed(self, request: GatewayRequest, now: float) -> float:
        """Seconds until the end of the answer, at least; 0: not known."""
        pace = pace_of(request) or self._paces.quick(now)
        return SURE * pace * max(0, self._missing(request) - (not request.shown))


def pace_of(request: GatewayRequest) -> float | None:
    """Seconds between two tokens of this request so far; None: there are too few to tell."""
    return request.pace_seconds if len(request.shown) >= TELLING_TOKENS else None
