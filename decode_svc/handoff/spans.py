"""Spans of a landing: each is checked before it can be read, sent again if damaged or missing, and then admitted.

Step 6 of a request's life. A one-sided writer sends the message Written when the bytes are in the pages. Two-sided
frames race with messages, so a span that is not there at Commit counts as missing only after a timer. Commit counts for
its round, the number of Resends before it. Decode computes what the writer does not repair."""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from decode_svc.handoff.sessions import Sessions
from decode_svc.request.requests import DecodeHost, DecodePhase, DecodeRequest, OpenLanding, layer_mask
from engine.pool.horizon import GONE, Horizon, held
from engine.pool.pages import PagePool
from kvtransfer.transfer import Pool
from mesh.messages.kv_messages import Commit, Landed, Resend
from mesh.rules import Rules
from mesh.telemetry.logs import trace_fields

log = logging.getLogger("baton.decode")

REPAIRS = 3  # Resends of one landing, after which decode computes what is missing


class Spans:
    def __init__(
        self, pages: PagePool, pool: Pool, sessions: Sessions, *, horizon: Horizon, host: DecodeHost, rules: Rules
    ) -> None:
        self._pages = pages
        self._pool = pool
        self._sessions = sessions
        self._horizon, self._page_tokens = horizon, horizon.page_tokens
        self._host = host
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self.damaged = 0  # pages of which a span arrived damaged
        self.missing = 0  # pages that decode asked for again because spans had not come
        self.admitted = 0
        self.whole = 0  # admitted requests of which prefill computed every token

    def arrived(
        self,
        request: DecodeRequest,
        landing: OpenLanding,
        indexes: Sequence[int],  # page indexes of the prompt
        first: int,
        layers: int,
        checksums: Sequence[int],  # as the writer computed them
    ) -> None:
        """The writer has written these layers of these pages: check them, and send Resend for each damaged page."""
        stated = [
            (index - landing.first_page, checksum)
            for index, checksum in zip(indexes, checksums, strict=True)
            if landing.lands(index)
        ]
        sound = self.check([(landing.pages[place], checksum) for place, checksum in stated], first, layers)
        for (place, _), valid in zip(stated, sound, strict=True):
            landing.settle(place, layer_mask(first, layers), valid=valid)
            if valid:
                landing.progress_seconds = self._loop.time()
            else:
                index = landing.first_page + place
                self.damaged += 1
                ids = trace_fields(request.job.traceparent)
                log.warning("request %d: page %d layers %d+%d damaged", request.key, index, first, layers, extra=ids)
                if landing.round < REPAIRS:  # else decode computes the page, once Commit of this round has come
                    self._resend(landing, [index], first, layers)
        if landing.commit is not None and landing.complete:
            self.admit(request)

    def check(self, stated: Sequence[tuple[int, int]], first: int, layers: int) -> list[bool]:
        """Rule [checksum]: a page is valid only if it has the checksum that its writer states. No damaged span is ever
        read."""
        found = self._pool.checksums([page for page, _ in stated], first, layers)
        return [actual == checksum for actual, (_, checksum) in zip(found, stated, strict=True)]

    def committed(self, request: DecodeRequest, landing: OpenLanding, commit: Commit) -> None:
        """The writer has written every span of a round."""
        if not landing.owner.committed_by(commit):
            return  # decode has sent a Resend since, which another Commit answers
        landing.commit = commit
        if landing.complete:
            self.admit(request)
        elif self._sessions.receivers[landing.transport].one_sided:
            self._repair(request, landing)
        else:
            self._loop.call_later(self._rules.missing_seconds, self._missing, request, landing, landing.round)

    def admit(self, request: DecodeRequest) -> None:
        """Make the landing's pages the request's own. Decode computes the text from the first invalid page on."""
        landing = request.landing
        assert landing is not None
        self._sessions.receivers[landing.transport].close(landing.ticket.pack())
        self._pages.admit(landing.writable)
        request.pages += landing.pages
        sound = (landing.first_page + landing.sound_pages) // self._horizon.bands * self._page_tokens
        request.filled = min(sound, len(request.tokens))
        if request.filled == len(request.tokens):
            first = landing.commit.first if landing.commit else None
            if first is None:
                request.filled -= 1  # the last row is computed again, to sample the first token here
            else:
                request.tokens.append(first.token)
                request.produced[first.position] = first
                self.whole += 1
        elif GONE in request.pages[self._horizon.first_page(request.filled) * self._horizon.bands :]:
            # the rows that are missing read or write pages that have not landed: compute the whole text here
            self._pages.release(held(request.pages))
            request.pages, request.hashes, request.filled = [], [], 0
        self.admitted += 1
        request.enter(DecodePhase.RUNNING)
        request.landing, request.landing_began_seconds = None, landing.began_seconds
        self._sessions.send(landing.writer, Landed(landing.ticket))
        self._host.admitted(request)
        self._host.wake()

    def _missing(self, request: DecodeRequest, landing: OpenLanding, round: int) -> None:
        """Two-sided: `missing_seconds` have passed since Commit, so spans that are not there are missing."""
        if request.landing is landing and landing.round == round and not landing.complete:
            self._repair(request, landing)

    def _repair(self, request: DecodeRequest, landing: OpenLanding) -> None:
        """Send Resend for every page that is not valid; after `REPAIRS` of them, admit the request as it is."""
        if landing.round >= REPAIRS:
            self.admit(request)
            return
        pages = [i for i, mask in enumerate(landing.valid, landing.first_page) if mask != landing.all_layers]
        self.missing += len(pages)
        self._resend(landing, pages, 0, self._pool.shape.layers)

    def _resend(self, landing: OpenLanding, pages: Iterable[int], first: int, layers: int) -> None:
        landing.round += 1
        landing.commit = None
        self._pages.own(landing.writable, landing.owner)
        self._sessions.send(landing.writer, Resend(landing.ticket, landing.round, first, layers, tuple(pages)))
