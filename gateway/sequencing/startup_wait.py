"""Says whether this gateway knows the mesh. After its start, and after its process was stopped, workers attach again
only bit by bit: each has to notice that its old session is over, and to register. Until then a missing numerics class
is no reason to end a request, because its worker may attach a second later."""

import asyncio
from collections.abc import Callable
from math import inf

from mesh.rules import Rules


class Settling:
    def __init__(self, rules: Rules, on_over: Callable[[], None]) -> None:
        """`on_over` is called when the wait is over: what waits for a missing worker is judged again."""
        self._rules, self._on_over = rules, on_over
        self._ends: float | None = None  # when the wait that is under way ends
        self._stopped_seconds = -inf  # when it was noticed last that this process had been stopped
        self._due: float | None = None  # when the next look at the clock is due; None: not started
        self._timer: asyncio.TimerHandle | None = None

    @property
    def over(self) -> bool:
        """Every worker that runs has had the time to attach."""
        return self._ends is None and not self._overdue

    @property
    def stopped(self) -> bool:
        """This process was stopped until a moment ago: what it notices now may have happened long before."""
        since = asyncio.get_running_loop().time() - self._stopped_seconds
        return self._overdue or since <= self._rules.late_seconds

    @property
    def _overdue(self) -> bool:
        """The look at the clock is late, which shows that this process was stopped. The ends of its sessions may be
        handled before the timer, so both questions ask for this too."""
        now = asyncio.get_running_loop().time()
        return self._due is not None and now - self._due > self._rules.late_seconds

    def start(self) -> None:
        """The gateway can be reached by workers from now on."""
        self._begin()
        self._schedule()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        self._ends = asyncio.get_running_loop().time() + self._rules.settling_seconds

    def _notice_stop(self) -> None:
        if self._overdue:
            self._stopped_seconds = asyncio.get_running_loop().time()
            self._begin()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._rules.heartbeat_seconds
        self._timer = loop.call_at(self._due, self._look)

    def _look(self) -> None:
        """Look at the clock, once per heartbeat."""
        self._notice_stop()
        self._schedule()
        if self._ends is not None and asyncio.get_running_loop().time() >= self._ends:
            self._ends = None
            self._on_over()
