"""Retries requests that wait for a worker whenever one attaches or reports room: step 2 of a request's life, again.

The oldest comes first. With many waiting requests a pass over them takes long, so after SLICE_SECONDS the event loop
serves others before the pass goes on. Room that is reported meanwhile starts one more pass behind this one: the oldest
is first again, and no request is passed over for ever."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from gateway.sequencing.requests import GatewayRequest, RequestPhase

SLICE_SECONDS = 0.002


class Retries:
    def __init__(
        self, waiting: Callable[[], Iterable[GatewayRequest]], retry: Callable[[GatewayRequest], None]
    ) -> None:
        """`waiting`: requests that wait, the oldest first; `retry` looks for a worker for one of them."""
        self._waiting, self._retry = waiting, retry
        self._left: deque[GatewayRequest] = deque()  # requests left for the pass that is under way
        self._once_more = False  # room was reported during this pass

    def start(self) -> None:
        if self._left:
            self._once_more = True
        else:
            self._left.extend(self._waiting())
            self._slice()

    def _slice(self) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + SLICE_SECONDS
        while self._left and loop.time() <= ends:
            request = self._left.popleft()
            if request.phase is RequestPhase.WAITING:  # else it ended, or has a worker, since the pass began
                self._retry(request)
            if not self._left and self._once_more:
                self._once_more = False
                self._left.extend(self._waiting())
        if self._left:
            loop.call_soon(self._slice)
