"""Warns about peers that a process cannot reach, so that a wrong address or certificate does not fail in silence.

Dials are repeated for as long as a process lives. A reason is logged once per peer, and only when the peer has been out
of reach for a while, since services of one mesh start at different times."""

import asyncio
import logging
from dataclasses import dataclass

PATIENCE_SECONDS = 5.0  # services that start together find each other within this time
MOST_PEERS = 1024  # an open port must not let strangers fill the memory


@dataclass(slots=True)
class _Failure:
    since: float
    logged: str = ""  # the last reason that was logged


class ReachLog:
    def __init__(self, log: logging.Logger, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._log, self._patience_seconds = log, patience_seconds
        self._failing: dict[str, _Failure] = {}

    def failed(self, peer: str, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if peer not in self._failing and len(self._failing) >= MOST_PEERS:
            self._failing.pop(next(iter(self._failing)))
        failure = self._failing.setdefault(peer, _Failure(now))
        if now - failure.since >= self._patience_seconds and reason != failure.logged:
            failure.logged = reason
            self._log.warning("cannot reach %s: %s", peer, reason)

    def reached(self, peer: str) -> None:
        failure = self._failing.pop(peer, None)
        if failure is not None and failure.logged:
            self._log.info("%s is reached again", peer)
