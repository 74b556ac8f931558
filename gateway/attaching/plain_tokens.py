"""The gateway's busiest loop: tokens of many requests, most of which take the short way to their clients.

Step 8 of a request's life. It reads the columns of a message (mesh/messages/packed_tokens.py) and keeps the sequencer's
books for each token that leaves at once. Every other token becomes an object and goes through `Sequencer.on_tokens`,
which decides; nothing is decided here. A token leaves here only where on_tokens would show it: the ticket is the
current one of an open request, the position is the next one, decode has been heard, and the class is that of the token
before."""

import asyncio

from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.sequencer import Sequencer
from gateway.sequencing.unread import Held
from gateway.workers.attached import AttachedWorker
from mesh.messages.codec_fields import unpack_ticket
from mesh.messages.jobs import End, Ticket, Token
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import TokenOf, Tokens

LEAST_KNOWN = 64  # tickets; an ended request stays known until as many others have come


class PlainTokens:
    def __init__(self, sequencer: Sequencer) -> None:
        self._sequencer = sequencer
        self._known: dict[bytes, tuple[GatewayRequest, Ticket, Held, int]] = {}  # by packed ticket
        self._most = LEAST_KNOWN  # beyond it those that have ended are forgotten

    def on_columns(self, worker: AttachedWorker, columns: PackedTokens) -> None:
        now, tier, numerics = asyncio.get_running_loop().time(), worker.tier, worker.numerics
        known, none, opened, shown = self._known, End.NONE, RequestPhase.OPEN, 0
        gaps: dict[float, list[GatewayRequest]] = {}  # by the time of the token before
        for raw, position, token, logprob, end in zip(
            columns.tickets, columns.positions, columns.tokens, columns.logprobs, columns.ends, strict=True
        ):
            entry = known.get(raw)
            if entry is not None and end is none:
                request, ticket, held, base = entry
                if (
                    held.waiting is not None
                    and held.plain is not None
                    and request.ticket is ticket
                    and request.phase is opened
                    and request.handed
                    and position == base + len(request.shown)
                    and request.numerics == numerics
                    and held.plain(token)
                ):
                    before = request.shown_seconds
                    if now != before:  # tokens of one message count once
                        if before in gaps:
                            gaps[before].append(request)
                        else:
                            gaps[before] = [request]
                        request.shown_seconds = now
                    request.trace.token(now, tier)
                    request.shown.append(token)
                    shown += 1
                    continue
            self._the_long_way(worker, raw, Token(position, token, logprob, end=end))
        if shown:
            self._sequencer.observer.taken_plain(shown, worker.model)
            for before, requests in gaps.items():
                self._sequencer.observer.next_tokens(requests[-1], now - before, now, len(requests))

    def _the_long_way(self, worker: AttachedWorker, raw: bytes, token: Token) -> None:
        ticket = unpack_ticket(raw)
        self._sequencer.on_tokens(worker, Tokens((TokenOf(ticket, token),)))
        request = self._sequencer.current(ticket)
        if request is None or request.ticket is None:
            self._known.pop(raw, None)
            return
        if len(self._known) >= self._most:
            self._forget()
        self._known[raw] = request, request.ticket, request.held, len(request.choice.emitted)

    def _forget(self) -> None:
        """Only requests that still run, with their newest tickets, stay known: no token comes for the others."""
        self._known = {
            raw: entry for raw, entry in self._known.items() if entry[0].ticket is entry[1] and not entry[0].ended
        }
        self._most = max(LEAST_KNOWN, 2 * len(self._known))
