"""A pause that a timer ends. Code that waits for its end reads `over` and compares no clocks.

asyncio may fire a timer a little early, by the resolution of the clock, and rounding makes it earlier still. Code that
a timer wakes and that compares clocks then finds that its time has not come, and no timer is left to wake it again."""

import asyncio
from collections.abc import Callable


class Pause:
    __slots__ = ("_timer", "over")

    def __init__(self) -> None:
        self.over = True  # False from `begin` until the timer has fired
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float, then: Callable[[], None]) -> None:
        """Pause for `seconds` from now on, instead of any pause under way, and call `then` at the end."""
        if self._timer is not None:
            self._timer.cancel()
        self.over = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end, then)

    def _end(self, then: Callable[[], None]) -> None:
        self.over, self._timer = True, None
        then()
