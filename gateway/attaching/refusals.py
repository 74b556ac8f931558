"""The workers that the gateway does not take, and why; `GET /health` shows them as refused_workers.

A refusal lasts as long as the session of the worker, or, where there is none, until the worker has stopped registering
for a while. Each reason is logged once."""

import logging
from dataclasses import dataclass
from enum import Enum

from mesh.messages.jobs import Tier

log = logging.getLogger("baton.gateway")

FORGET_SECONDS = 15.0  # a worker registers again every second; one that was silent for this time is gone
MOST = 256  # refusals that are kept and logged; a worker beyond them is refused in silence
SHOWN_LETTERS = 80  # characters that are shown of an address which is longer, or not printable

Who = tuple[int, str]  # incarnation and address with which a process registered


class Until(Enum):
    """When a refusal is over."""

    SESSION_ENDS = "session_ends"  # the process has a session without requests, so that it does not register again
    TRIES_AGAIN = "tries_again"  # the next Register is judged anew
    RESTART = "restart"  # the process was attached and has sent what no worker sends: it stays out


@dataclass(frozen=True, slots=True)
class _Refusal:
    text: str
    until: Until
    seen_seconds: float  # when the process last tried


class Refusals:
    def __init__(self) -> None:
        self._refusals: dict[Who, _Refusal] = {}

    def add(self, who: Who, tier: Tier, name: str, why: str, now: float, until: Until) -> None:
        address = who[1] if who[1].isprintable() and len(who[1]) <= SHOWN_LETTERS else repr(who[1][:SHOWN_LETTERS])
        text, known = f"{name} at {address}: {why}", self._refusals.get(who)
        if known is None and len(self._refusals) >= MOST and len(self.texts(now)) >= MOST:
            return
        if known is None or known.text != text:
            log.error("%s %s is refused: %s", tier.value, address, why)
        self._refusals[who] = _Refusal(text, until, now)

    def stays_out(self, who: Who, now: float) -> bool:
        """Does this process stay out until it starts anew?"""
        refusal = self._refusals.get(who)
        if refusal is None or refusal.until is not Until.RESTART:
            return False
        self._refusals[who] = _Refusal(refusal.text, refusal.until, now)
        return True

    def session_ended(self, who: Who) -> None:
        if (refusal := self._refusals.get(who)) is not None and refusal.until is Until.SESSION_ENDS:
            del self._refusals[who]

    def texts(self, now: float) -> tuple[str, ...]:
        """The name and address of each refused process, and the reason."""
        gone = [who for who, each in self._refusals.items() if each.until is not Until.SESSION_ENDS]
        for who in gone:
            if now - self._refusals[who].seen_seconds > FORGET_SECONDS:
                del self._refusals[who]
        return tuple(refusal.text for refusal in self._refusals.values())
