"""Prefill's side of the talk with decode: Ready, what decode answers, and the end of a session.

The table "Prompt at prefill" of PROTOCOL.md, row by row; step 3 of a request's life and its repairs. Nothing is
reserved while a prompt waits for its Landing, and a prompt that got Later lets others pass. A ticket that is not known
any more is answered Quiet: none of its writes is in flight."""

import asyncio
from collections.abc import Callable

from mesh.messages import Abort, Landed, Landing, Later, Lost, Message, Quiet, Ready, Reason, Resend
from mesh.rules import Rules
from mesh.telemetry import Telemetry
from prefill_svc.ledger import Ledger
from prefill_svc.links import DecodeLink, Links
from prefill_svc.prompts import Prompt, PromptPhase
from prefill_svc.pushing import Pushing


class HandOff:
    def __init__(
        self,
        ledger: Ledger,
        links: Links,
        pushing: Pushing,
        *,
        incarnation: int,
        ahead_tokens: int,
        telemetry: Telemetry,
        rules: Rules,
        wake: Callable[[], None],
    ) -> None:
        self._ledger, self._links, self._pushing, self._telemetry = ledger, links, pushing, telemetry
        self._incarnation, self._ahead_tokens, self._rules, self._wake = incarnation, ahead_tokens, rules, wake
        self._loop = asyncio.get_running_loop()

    def ask(self, room: int) -> None:
        """Ready for the prompts whose turn comes within the next step or so; `room` is this pool's free pages."""
        prompts, now = self._ledger.prompts.values(), self._loop.time()
        ahead = sum(p.remaining for p in prompts if p.computing)
        for prompt in list(prompts):
            silent = prompt.phase is PromptPhase.ASKED and now - prompt.asked_seconds >= self._rules.ready_seconds
            if prompt.phase is PromptPhase.ASKED and not silent:
                ahead += prompt.remaining
            needed = self._ledger.pages_of(prompt)
            link = self._links.get(prompt.decode_address)
            again = silent and not self._rules.one_ready
            if not (prompt.phase is PromptPhase.QUEUED or again) or link is None or not link.up:
                continue
            if ahead >= self._ahead_tokens or now < prompt.ask_again_seconds or needed > room:
                continue
            ahead, room = ahead + prompt.remaining, room - needed
            if prompt.phase is PromptPhase.QUEUED:
                prompt.enter(PromptPhase.ASKED)
            prompt.asked_seconds = now
            link.send(Ready(prompt.ticket))
            self._loop.call_later(self._rules.ready_seconds, self._wake)

    def on_message(self, link: DecodeLink, message: Message) -> None:
        match message:
            case Landing():
                self._land(link, message)
            case Later(ticket=ticket):
                if (prompt := self._ledger.find(ticket)) and prompt.phase is PromptPhase.ASKED:
                    self._put_off(prompt)
            case Resend():
                self._resend(link, message)
            case Landed(ticket=ticket):
                if prompt := self._ledger.find(ticket):
                    self._ledger.stop(prompt, quiet=False)
            case Abort(ticket=ticket):
                if prompt := self._ledger.find(ticket):
                    self._ledger.stop(prompt, quiet=True)
                elif self._rules.requiet:
                    link.send(Quiet(ticket, self._incarnation))
            case _:
                raise TypeError(f"{type(message).__name__} is no message of a decode worker")
        self._wake()

    def say_quiet(self, prompt: Prompt) -> None:
        self._links.to(prompt.decode_address).send(Quiet(prompt.ticket, self._incarnation))

    def _land(self, link: DecodeLink, landing: Landing) -> None:
        prompt = self._ledger.find(landing.ticket)
        if prompt is None:
            if self._rules.requiet:
                link.send(Quiet(landing.ticket, self._incarnation))
        elif prompt.phase is PromptPhase.STOPPING:
            self._ledger.stop(prompt, quiet=True)
        elif prompt.phase in (PromptPhase.QUEUED, PromptPhase.ASKED):
            if self._ledger.take(prompt):
                prompt.enter(PromptPhase.PUSHING)
                prompt.landing, prompt.landed_seconds = landing, self._loop.time()
                parent = prompt.job.traceparent
                self._telemetry.record("prefill.queue", parent, prompt.queued_seconds, prompt.landed_seconds)
                self._pushing.landed(prompt)
            else:  # no room any more
                self._put_off(prompt)
                link.send(Quiet(landing.ticket, self._incarnation))

    def _put_off(self, prompt: Prompt) -> None:
        if prompt.phase is PromptPhase.ASKED:
            prompt.enter(PromptPhase.QUEUED)
        prompt.ask_again_seconds = self._loop.time() + self._rules.again_seconds
        self._loop.call_later(self._rules.again_seconds, self._wake)

    def _resend(self, link: DecodeLink, resend: Resend) -> None:
        prompt = self._ledger.find(resend.ticket)
        if prompt is None:
            link.send(Quiet(resend.ticket, self._incarnation))
        elif prompt.phase in (PromptPhase.PUSHING, PromptPhase.HELD):
            if prompt.phase is PromptPhase.HELD:
                prompt.enter(PromptPhase.PUSHING)
            prompt.round = resend.round
            self._pushing.push(prompt, resend.pages, resend.first_layer, resend.layers, again=True)
        else:
            self._ledger.stop(prompt, quiet=True)

    # ---- the way to decode is gone

    def session_ended(self, link: DecodeLink) -> None:
        for prompt in self._ledger.bound_for(link.address):
            if prompt.phase is PromptPhase.ASKED:
                prompt.enter(PromptPhase.QUEUED)
            elif prompt.phase is PromptPhase.PUSHING:
                self.cannot_push(prompt)
            elif prompt.phase is PromptPhase.HELD:
                self._ledger.stop(prompt, quiet=False)
        self._wake()

    def unreachable(self, link: DecodeLink) -> None:
        """Nobody answers there: after a lease's time prompts for it go on elsewhere."""
        oldest = self._loop.time() - self._rules.lease_seconds
        for prompt in self._ledger.bound_for(link.address):
            if prompt.phase is PromptPhase.QUEUED and max(prompt.queued_seconds, link.ended_seconds) < oldest:
                self._lose(prompt)

    def cannot_push(self, prompt: Prompt) -> None:
        if prompt.phase is PromptPhase.PUSHING:
            self._lose(prompt)

    def _lose(self, prompt: Prompt) -> None:
        prompt.gateway.send(Lost(prompt.ticket, Reason.CANNOT_PUSH))
        self._ledger.stop(prompt, quiet=False)
