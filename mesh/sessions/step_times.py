"""How long a worker's steps take, and how long the one that runs may take before the worker counts it as hung.

Steps 4 and 7 of a request's life. The limit grows with what this worker has measured: a slow machine measures long
steps, so it gets long limits. Before the second step is over nothing is measured; then the size of the weights stands
in for it, with rates below those of any machine that could serve."""

from collections import deque
from collections.abc import Callable
from heapq import nlargest

LEAST_LIMIT_SECONDS = 20.0  # no step counts as hung before
TIMES = 20.0  # nor before it has taken this multiple of the time that the slowest of the last steps lets expect
REMEMBERED = 256  # steps; the slowest of them does not count, since the machine may have stood still for it
GUESSED_LOAD_BYTES_PER_SECOND = 50e6  # the first step reads weights from a slow disk
GUESSED_ROW_BYTES_PER_SECOND = 1e9  # ... and each of its rows reads them again from slow memory
FIRST_GPU_SECONDS = 300.0  # the first step on a GPU may compile kernels


class StepTimes:
    def __init__(self, clock: Callable[[], float], *, weights_bytes: int = 0, first_seconds: float = 0.0) -> None:
        """`first_seconds`: time that the first step may take for reasons of its own."""
        self._clock, self._weights_bytes, self._first_seconds = clock, weights_bytes, first_seconds
        self._rows: deque[int] = deque()  # rows of each step that the runner has, the one that computes first
        self._since = 0.0  # when that one began
        self._last: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # seconds of a step, and of each of its rows
        self._first = True  # the first step is not over; it has reasons of its own to be slow, and teaches nothing

    def begin(self, rows: int) -> None:
        """The runner gets a step; it computes it once the steps before it are over."""
        if not self._rows:
            self._since = self._clock()
        self._rows.append(rows)

    def end(self) -> None:
        """The first of the runner's steps is over."""
        rows, now = self._rows.popleft(), self._clock()
        seconds, self._since = now - self._since, now
        if self._first:
            self._first = False
            return
        self._last.append((seconds, seconds / max(1, rows)))

    def excuse(self, seconds: float) -> None:
        """The whole process stood still for `seconds`; that is no fault of the step that computes."""
        self._since = min(self._since + seconds, self._clock())

    @property
    def running_seconds(self) -> float:
        """How long the step that computes has taken so far; 0: none does."""
        return max(0.0, self._clock() - self._since) if self._rows else 0.0

    @property
    def limit_seconds(self) -> float:
        """How long the step that computes may take at most."""
        try:
            rows = self._rows[0]
        except IndexError:  # no step, or the event loop has just taken the last one away from the watchdog's thread
            rows = 1
        if not self._last:
            load, row = GUESSED_LOAD_BYTES_PER_SECOND, GUESSED_ROW_BYTES_PER_SECOND
            guess = self._weights_bytes / load + rows * self._weights_bytes / row
            return max(LEAST_LIMIT_SECONDS, self._first_seconds, guess)
        last = tuple(self._last)  # the event loop may add to it meanwhile
        longest, slowest_row = (_second(each) for each in zip(*last, strict=True))
        expected = max(longest, rows * slowest_row)
        return max(LEAST_LIMIT_SECONDS, TIMES * expected)


def _second(values: tuple[float, ...]) -> float:
    """The second largest; of one its only value."""
    return nlargest(2, values)[-1]
