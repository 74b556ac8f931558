"""Spans of a landing as they arrive: each is checked before it can be read, and sent again if damaged or missing.

Step 6 of a request's life. One-sided writers say Written over control, after which the bytes are there; two-sided
frames come by themselves and race with control, so what is missing at Commit is called missing only after a timer.
Commit counts for its round, the number of Resends before it: an older one says nothing about what was asked again."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from decode_svc.handoff.sessions import Peer
from decode_svc.requests import DecodeRequest, OpenLanding
from engine.pages import PagePool
from kvtransfer.transfer import Pool, Receiver
from mesh.messages import Commit, Resend
from mesh.rules import Rules

log = logging.getLogger("baton.decode")

REPAIRS = 3  # Resends of one landing before what is missing is computed here


class Spans:
    def __init__(
        self,
        pages: PagePool,
        pool: Pool,
        receivers: Mapping[str, Receiver],
        peers: Mapping[int, Peer],
        *,
        rules: Rules,
        admit: Callable[[DecodeRequest], None],
    ) -> None:
        self._pages, self._pool, self._receivers, self._peers = pages, pool, receivers, peers
        self._rules, self._admit = rules, admit
        self._loop = asyncio.get_running_loop()

    def arrived(
        self, request: DecodeRequest, indexes: Sequence[int], first: int, layers: int, checksums: Sequence[int]
    ) -> None:
        landing = request.landing
        assert landing is not None
        told = [
            (index - landing.first_page, index, checksum)
            for index, checksum in zip(indexes, checksums, strict=True)
            if 0 <= index - landing.first_page < len(landing.pages)
        ]
        found: Sequence[int] = [checksum for _, _, checksum in told]
        if self._rules.checksum:
            found = self._pool.checksums([landing.pages[place] for place, _, _ in told], first, layers)
        mask = ((1 << layers) - 1) << first
        for (place, index, checksum), there in zip(told, found, strict=True):
            if there == checksum:
                landing.valid[place] |= mask
                landing.progress_seconds = self._loop.time()
            else:
                landing.valid[place] &= ~mask
                log.warning("request %d: page %d layers %d+%d damaged", request.key, index, first, layers)
                self._resend(landing, [index], first, layers)

    def committed(self, request: DecodeRequest, commit: Commit) -> None:
        landing = request.landing
        assert landing is not None
        if commit.round != landing.round and self._rules.resend_count:
            return  # of a round before a Resend: another one comes
        landing.commit = commit
        if landing.complete or not self._rules.checksum:
            self._admit(request)
        elif self._receivers[landing.transport].one_sided:
            self._repair(request, landing)
        else:
            self._loop.call_later(self._rules.missing_seconds, self._missing, request, landing, landing.round)

    def _missing(self, request: DecodeRequest, landing: OpenLanding, round: int) -> None:
        """Two-sided: the timer after Commit."""
        if request.landing is landing and landing.round == round and not landing.complete:
            self._repair(request, landing)

    def _repair(self, request: DecodeRequest, landing: OpenLanding) -> None:
        if landing.round >= REPAIRS:
            self._admit(request)
            return
        pages = [i for i, mask in enumerate(landing.valid, landing.first_page) if mask != landing.all_layers]
        self._resend(landing, pages, 0, self._pool.shape.layers)

    def _resend(self, landing: OpenLanding, pages: Iterable[int], first: int, layers: int) -> None:
        landing.round += 1
        landing.commit = None
        self._pages.own(landing.pages, landing.owner)
        if peer := self._peers.get(landing.writer):
            peer.send(Resend(landing.ticket, landing.round, first, layers, tuple(pages)))
