"""The tokens of one choice on their way from the sequencer to a front door: step 8 of a request's life.

The sequencer puts tokens, or the error that ended the request, into `GatewayRequest.unread`; the front door reads them
here. A reader that was behind and has caught up lets its request go on."""

import asyncio
from collections.abc import AsyncIterator
from typing import Protocol

from gateway.core.client_errors import client_error
from gateway.core.interface import TakeToken, Timings
from gateway.sequencing.observer import RequestObserver
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import End, Token


class StreamHost(Protocol):
    """The sequencer, as far as streams need it."""

    @property
    def observer(self) -> RequestObserver: ...

    def on_drained(self, request: GatewayRequest) -> None:
        """The reader of a paused request has taken what was held."""

    def end(self, request: GatewayRequest, error: BatonError | None = None) -> None: ...


class RequestStream:
    """The core's TokenStream."""

    def __init__(self, host: StreamHost, request: GatewayRequest) -> None:
        self._host = host
        self._request = request
        self._drafted = self._accepted = 0  # drafts, and accepted drafts, among the tokens that the front door has read
        self._in_a_row = 0  # accepted drafts since the last token that was none
        self._take: TakeToken = lambda token: False

    async def events(self) -> AsyncIterator[Token]:
        request, unread = self._request, self._request.unread
        while True:
            if not unread.ready:
                await unread.wait()
            event = unread.take()
            if not isinstance(event, Token):
                request.error = None  # its traceback will refer to this frame: such a cycle would be left as garbage
                try:
                    raise event
                finally:
                    del event
            if request.phase is RequestPhase.PAUSED and unread.drained:
                self._host.on_drained(request)
            self._count(event)
            yield event
            if event.end is not End.NONE:
                return

    def shorten(self, take: TakeToken) -> None:
        self._take, self._request.unread.express = take, self._express

    def _express(self, token: int, made: Token | None) -> bool:
        """A token leaves past the reader, if `take` takes it."""
        try:
            passed = self._take(token)
        except Exception as error:  # an error in this answer alone: the worker's other requests go on
            unread = self._request.unread
            unread.express = None
            unread.fail(client_error(error, self._request.choice.request_id))
            return True
        if passed and made is not None:
            self._count(made)
        elif passed:
            self._in_a_row = 0  # the sequencer counts plain tokens itself, a message at a time
        return passed

    def _count(self, token: Token) -> None:
        """The front door has taken a token."""
        self._drafted += token.drafted
        self._accepted += token.accepted
        self._in_a_row = self._in_a_row + 1 if token.accepted else 0
        self._host.observer.taken(token, self._in_a_row, self._request.choice.model)

    @property
    def numerics(self) -> str:
        request = self._request
        read = len(request.shown) - len(request.unread)
        position = len(request.choice.emitted) + read - 1  # position of the token that the front door read last
        return next((name for first, name in reversed(request.classes) if first <= position), request.choice.numerics)

    @property
    def timings(self) -> Timings:
        request, prefilled = self._request, self._request.prefilled
        began, ended = request.accepted_seconds, request.ended_seconds or asyncio.get_running_loop().time()
        first, handed = request.first_token_seconds or ended, request.handed_seconds or ended
        return Timings(
            queue_seconds=prefilled.queued_seconds if prefilled else None,
            prefill_seconds=prefilled.computed_seconds if prefilled else None,
            first_token_seconds=first - began,
            handoff_seconds=max(0.0, handed - first),
            decode_seconds=ended - first,
            total_seconds=ended - began,
            attempts=request.ticket.attempt if request.ticket else 0,
            cached_tokens=prefilled.cached_tokens if prefilled else 0,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
            decode_steps=max(0, len(request.shown) - len(request.unread) - self._accepted - 1),
        )

    def cancel(self, *, complete: bool = False) -> None:
        request = self._request
        request.complete |= complete and not request.ended
        self._host.end(request, Cancelled("the client went away"))
