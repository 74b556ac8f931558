"""Passes the tokens of workers on to clients: the gateway's busiest loop, and the only way of a token through it.

Steps 5 and 8 of a request's life. Each token of a message is shown if it belongs to the current attempt [attempt] and
has the next position [position]; all others are dropped. A shown token whose reader waits for it leaves at once, past
the reader (gateway/sequencing/unread.py), unless it is the last one or the first of its numerics class; any other one
waits for the reader."""

import asyncio
from typing import Protocol

from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.requests import GatewayRequest
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import End, Tier, Token
from mesh.messages.reports import Tokens

Gaps = dict[float, list[GatewayRequest]]  # requests that got a further token, by the time of the one before


class RelayHost(Protocol):
    """The sequencer, as far as tokens need it."""

    def current(self, ticket: bytes) -> GatewayRequest | None:
        """The open request whose current attempt has this packed ticket."""

    def started(self, request: GatewayRequest, now: float) -> None:
        """The first token of a request is shown."""

    def pause(self, request: GatewayRequest, now: float) -> None:
        """The reader is behind: the workers forget the request and give its place to others."""

    def end(self, request: GatewayRequest) -> None:
        """The last token is shown."""


class TokenRelay:
    def __init__(self, host: RelayHost, observer: RequestObserver) -> None:
        self._host, self._observer = host, observer
        self.passed = self.waited = 0  # tokens that left at once, and that waited for their reader

    def on_tokens(self, worker: AttachedWorker, tokens: Tokens) -> None:
        """One message carries a whole step of a worker."""
        now = asyncio.get_running_loop().time()
        tier = worker.tier
        numerics = worker.numerics
        current = self._host.current
        none = End.NONE
        gaps = Gaps()
        left = 0
        for ticket, position, token, logprob, end, made in tokens.rows():
            request = current(ticket)
            if request is None:
                continue
            if tier is Tier.DECODE and not request.handed:
                self._hear(request, now)
            if not request.is_next(position):
                continue
            stays = request.computed_in(numerics)
            self._note(request, tier, token, now, gaps)
            unread = request.unread
            if stays and end is none and unread.passes(token, made):
                left += made is None
                self.passed += 1
                continue
            self.waited += 1
            unread.put(Token(position, token, logprob, end=end) if made is None else made, now)
            if end is not none:
                request.last_end = end
                self._host.end(request)
            elif unread.behind(now):
                self._host.pause(request, now)
        if left:
            self._observer.taken_plain(left, worker.model)
        for before, requests in gaps.items():
            self._observer.next_tokens(requests[-1], now - before, now, len(requests))

    def _hear(self, request: GatewayRequest, now: float) -> None:
        """Decode sends its first token of this attempt: it has the pages."""
        request.handed = True
        request.trace.hears(now, Tier.DECODE)
        if request.handed_seconds is None:
            request.handed_seconds = now
            self._observer.handed(request, now)

    def _note(self, request: GatewayRequest, tier: Tier, token: int, now: float, gaps: Gaps) -> None:
        """The token is shown from now on."""
        if request.first_token_seconds is None:
            request.first_token_seconds = now
            self._host.started(request, now)
        elif (before := request.shown_seconds) != now:  # tokens of one message count once
            if before in gaps:
                gaps[before].append(request)
            else:
                gaps[before] = [request]
        request.shown_seconds = now
        request.trace.token(now, tier)
        request.show(token)
