"""How long one call of baton.client goes on trying, and its pauses between two rounds over the gateways."""

import asyncio
import random

import grpc

from baton.retry_delay import retry_delay

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.1, 2.0
PATIENCE_SECONDS = 30.0  # time without progress after which a call without a deadline gives up


class CallPace:
    def __init__(self, timeout_seconds: float | None, *, patience_seconds: float | None, gateways: int) -> None:
        self._now = asyncio.get_running_loop().time
        self._deadline = float("inf") if timeout_seconds is None else self._now() + timeout_seconds
        usual = PATIENCE_SECONDS if timeout_seconds is None else float("inf")
        self._patience_seconds = usual if patience_seconds is None else patience_seconds
        self._gateways = gateways
        self.goes_on()

    def goes_on(self) -> None:
        """The call has made progress."""
        self._since, self._pause, self._failures = self._now(), FIRST_PAUSE_SECONDS, 0
        self._begin_round()

    def _begin_round(self) -> None:
        self._may_pass, self._asked = False, list[float]()  # seconds for which gateways ask callers to wait

    def seconds_left(self) -> float | None:
        return None if self._deadline == float("inf") else max(0.0, self._deadline - self._now())

    async def after(self, problem: Exception, *, broke_off: bool = False) -> None:
        """Return when the next gateway may be tried; raises the problem when there is no use. A pause comes after all
        gateways have failed, and only if one of them may be back later. It is at least as long as one of them asks
        (RetryInfo); where that is longer than the time that is left, it does not begin. `broke_off`: an answer had
        begun."""
        self._failures += 1
        unavailable = getattr(problem, "code", lambda: None)() is grpc.StatusCode.UNAVAILABLE
        if (asked := retry_delay(problem)) is not None:
            self._asked.append(asked)
        self._may_pass |= broke_off or unavailable or asked is not None
        if self._failures % self._gateways:
            return
        left, least = min(self._since + self._patience_seconds, self._deadline) - self._now(), min(self._asked or [0.0])
        if not self._may_pass or left < max(FIRST_PAUSE_SECONDS, least):
            raise problem
        # Clients that lost the same gateway do not come back all at once; the last tries come shortly before the end.
        pause = min(self._pause * random.uniform(0.5, 1.0), left / 2)
        asked = min(least * random.uniform(1.0, 1.25), (least + left) / 2)  # some time is left for the next try
        await asyncio.sleep(max(pause, asked))
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        self._begin_round()
