"""Measures by how much a worker's clock differs from the gateway's, so that one trace can hold the times of both.

The gateway sends a probe over Attach and notes its own time before and after; the worker's reading lies between. The
quickest of a few round trips counts, since the error is at most half of it. Clocks drift, so this is repeated."""

import asyncio
from collections.abc import Callable

from mesh.messages.orders import ClockProbe
from mesh.messages.reports import ClockReading

PROBES = 5  # round trips of one measurement
REPEAT_SECONDS = 10.0  # between two measurements


class WorkerClock:
    def __init__(self, send: Callable[[ClockProbe], None]) -> None:
        self.offset_seconds = 0.0  # to add to the worker's times
        self.error_seconds: float | None = None  # at most so wrong; None: not measured yet
        self._send = send
        self._number = 0
        self._sent_seconds = 0.0
        self._readings: list[tuple[float, float]] = []  # (round trip, offset) of this measurement
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure now, and again and again."""
        self._readings = []
        self._probe()
        self._timer = asyncio.get_running_loop().call_later(REPEAT_SECONDS, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def read(self, reading: ClockReading) -> None:
        """A probe is answered."""
        if reading.number != self._number:
            return  # the answer to a probe of the measurement before
        now = asyncio.get_running_loop().time()
        self._readings.append((now - self._sent_seconds, (now + self._sent_seconds) / 2 - reading.seconds))
        if self.error_seconds is None or len(self._readings) == PROBES:
            round_trip, self.offset_seconds = min(self._readings)
            self.error_seconds = round_trip / 2
        if len(self._readings) < PROBES:
            self._probe()

    def _probe(self) -> None:
        self._number += 1
        self._sent_seconds = asyncio.get_running_loop().time()
        self._send(ClockProbe(self._number))
