"""The workers that the gateway does not take, and why; `GET /health` shows them as refused_workers.

A refusal lasts as long as the session of the worker, or, where there is none, until the worker has stopped registering
for a while. Each reason is logged once."""

import logging
from dataclasses import dataclass

from mesh.messages import Tier

log = logging.getLogger("baton.gateway")

FORGET_SECONDS = 15.0  # a worker registers again every second; one that has not for so long is gone
MOST = 256  # what one page shows; a worker beyond it is refused and logged all the same

Who = tuple[int, str]  # incarnation and address with which a process registered


@dataclass(slots=True)
class _Refusal:
    text: str
    forget_seconds: float | None  # None: as long as its session lives


class Refusals:
    def __init__(self) -> None:
        self._refusals: dict[Who, _Refusal] = {}

    def add(self, who: Who, tier: Tier, name: str, why: str, now: float, *, session: bool) -> None:
        """The process of this name is refused: while its session lives, or until it stops to register."""
        text = f"{name} at {who[1]}: {why}"
        known = self._refusals.get(who)
        if known is None or known.text != text:
            log.error("%s %s is refused: %s", tier.value, who[1], why)
        if known is not None or len(self._refusals) < MOST:
            self._refusals[who] = _Refusal(text, None if session else now + FORGET_SECONDS)

    def bars(self, who: Who, now: float) -> bool:
        """Is this process refused although it has no session? Then its refusal lasts longer."""
        self._forget(now)
        refusal = self._refusals.get(who)
        if refusal is None or refusal.forget_seconds is None:
            return False
        refusal.forget_seconds = now + FORGET_SECONDS
        return True

    def session_ended(self, who: Who) -> None:
        if (refusal := self._refusals.get(who)) is not None and refusal.forget_seconds is None:
            del self._refusals[who]

    def texts(self, now: float) -> tuple[str, ...]:
        self._forget(now)
        return tuple(refusal.text for refusal in self._refusals.values())

    def _forget(self, now: float) -> None:
        over = [who for who, each in self._refusals.items() if each.forget_seconds is not None]
        for who in over:
            if now > (self._refusals[who].forget_seconds or 0.0):
                del self._refusals[who]
