"""What gateways say to a decode worker: how a request comes, what a later attempt takes over, who is refused, and how
it goes again, by Cancel or with its gateway.

Step 2 of a request's life as decode sees it; Open is the only message that raises an attempt here. Refused is only
what can never fit, or not while pages stay quarantined that nobody may prove: never for lack of free pages. A request
that runs keeps its pages and goes on under the new attempt; any other begins anew, at its old place among those who
wait."""

import asyncio
import logging
from collections.abc import Callable

from decode_svc.emission import Emission
from decode_svc.handoff.landings import Landings
from decode_svc.requests import DecodePhase, DecodeRequest
from engine.batch import pages_needed
from engine.pages import PagePool
from mesh.messages import Cancel, Full, FullKind, Message, Open
from mesh.session import Session

log = logging.getLogger("baton.decode")


class Opening:
    def __init__(
        self,
        requests: dict[int, DecodeRequest],
        pages: PagePool,
        landings: Landings,
        emission: Emission,
        *,
        page_tokens: int,
        drop: Callable[[DecodeRequest], None],
        changed: Callable[[], None],
    ) -> None:
        self._requests, self._pages, self._landings, self._emission = requests, pages, landings, emission
        self._page_tokens, self._drop, self._changed = page_tokens, drop, changed
        self._loop = asyncio.get_running_loop()

    def on_message(self, gateway: Session, message: Message) -> None:
        match message:
            case Open():
                self._open(gateway, message)
            case Cancel():
                request = self._requests.get(message.request)
                if request and request.ticket.attempt <= message.attempt:
                    log.debug(
                        "request %d: cancelled while %s", request.key, request.phase.value,
                        extra={"event": "request_cancelled", "request": request.key, "phase": request.phase.value},
                    )  # fmt: skip
                    self._drop(request)
            case _:
                raise TypeError(f"{type(message).__name__} is no message to a decode worker")
        self._changed()

    def gateway_ended(self, gateway: Session) -> None:
        for request in list(self._requests.values()):
            if request.gateway is gateway:
                self._drop(request)
        self._changed()

    def fits(self, request: DecodeRequest) -> bool:
        """Into what is left of the pool besides pages that nobody may ever prove."""
        return self._need(request) <= self._pages.pages - self._landings.quarantine.stuck_pages

    def hopeless(self) -> list[DecodeRequest]:
        """Waiting requests that do not fit any more."""
        if not self._landings.quarantine.stuck_pages:
            return []
        waiting = [r for r in self._requests.values() if r.phase in (DecodePhase.OPEN, DecodePhase.LOCAL)]
        return [r for r in waiting if not self.fits(r)]

    def admit_local(self) -> list[DecodeRequest]:
        """Prompts that are prefilled here and have room now, oldest first; returns those that began."""
        local = sorted((r for r in self._requests.values() if r.phase is DecodePhase.LOCAL), key=lambda r: r.seniority)
        return [request for request in local if self._begin(request)]

    def _open(self, gateway: Session, message: Open) -> None:
        job, old = message.job, self._requests.get(message.job.ticket.request)
        if old is not None and old.ticket.attempt >= job.ticket.attempt and self._landings.same(old.ticket, job.ticket):
            return
        if old is not None and old.phase is DecodePhase.RUNNING and self._go_on(old, gateway, message):
            return
        opened, passed = self._loop.time() - message.age_ms / 1000, None
        if old is not None:
            opened, passed = min(opened, old.opened_seconds), old.passed
            self._drop(old)
        phase = DecodePhase.LOCAL if message.prefill_incarnation is None else DecodePhase.OPEN
        request = DecodeRequest(
            job, gateway, phase, opened, list(job.tokens), message.prefill_incarnation, passed=passed
        )
        if self._need(request) > self._pages.pages:
            gateway.send(Full(job.ticket, FullKind.EVER))
        else:
            self._requests[request.key] = request

    def _go_on(self, request: DecodeRequest, gateway: Session, message: Open) -> bool:
        """It runs and has the pages: go on under the new attempt, emitting again from its base."""
        job = message.job
        known = min(len(job.tokens), len(request.tokens))
        if tuple(request.tokens[:known]) != job.tokens[:known]:
            return False
        request.job, request.gateway, request.prefill = job, gateway, message.prefill_incarnation
        request.tokens.extend(job.tokens[known:])
        for position in range(job.base, request.next_position):
            self._emission.show(request, request.produced[position])
        self._emission.flush()
        return True

    def _begin(self, request: DecodeRequest) -> bool:
        shared = self._landings.find(request)
        lacking = pages_needed(len(request.tokens), self._page_tokens) - len(shared)
        pages = self._pages.take(lacking) if self._landings.room(request, lacking) else None
        if pages is None:
            self._pages.release(shared)
            return False
        request.pages = [*shared, *pages]
        request.filled = request.cached = min(len(shared) * self._page_tokens, len(request.tokens) - 1)
        request.enter(DecodePhase.RUNNING)
        request.running_seconds = self._loop.time()
        return True

    def _need(self, request: DecodeRequest) -> int:
        """Pages of its whole text."""
        return pages_needed(len(request.job.prompt) + request.job.sampling.max_tokens, self._page_tokens)
