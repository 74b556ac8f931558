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
from prefill_svc.links import Link, Links
from prefill_svc.prompts import Prompt, Stage
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
            silent = prompt.stage is Stage.ASKED and now - prompt.asked_seconds >= self._rules.ready_seconds
            if prompt.stage is Stage.ASKED and not silent:
                ahead += prompt.remaining
            needed = self._ledger.pages_of(prompt)
            link = self._links.get(prompt.decode_address)
            again = silent and not self._rules.one_ready
            if not (prompt.stage is Stage.QUEUED or again) or link is None or not link.up:
                continue
            if ahead >= self._ahead_tokens or now < prompt.ask_again_seconds or needed > room:
                continue
            ahead, room = ahead + prompt.remaining, room - needed
            if prompt.stage is Stage.QUEUED:
                prompt.enter(Stage.ASKED)
            prompt.asked_seconds = now
            link.send(Ready(prompt.ticket))
            self._loop.call_later(self._rules.ready_seconds, self._wake)

    def on_message(self, link: Link, message: Message) -> None:
        match message:
            case Landing():
                self._land(link, message)
            case Later(ticket=ticket):
                if (prompt := self._ledger.find(ticket)) and prompt.stage is Stage.ASKED:
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

    def _land(self, link: Link, landing: Landing) -> None:
        prompt = self._ledger.find(landing.ticket)
        if prompt is None:
            if self._rules.requiet:
                link.send(Quiet(landing.ticket, self._incarnation))
        elif prompt.stage is Stage.STOPPING:
            self._ledger.stop(prompt, quiet=True)
        elif prompt.stage in (Stage.QUEUED, Stage.ASKED):
            if self._ledger.take(prompt):
                prompt.enter(Stage.PUSHING)
                prompt.landing, prompt.landed_seconds = landing, self._loop.time()
                parent = prompt.job.traceparent
                self._telemetry.record("prefill.queue", parent, prompt.queued_seconds, prompt.landed_seconds)
                self._pushing.landed(prompt)
            else:  # no room any more
                self._put_off(prompt)
                link.send(Quiet(landing.ticket, self._incarnation))

    def _put_off(self, prompt: Prompt) -> None:
        if prompt.stage is Stage.ASKED:
            prompt.enter(Stage.QUEUED)
        prompt.ask_again_seconds = self._loop.time() + self._rules.again_seconds
        self._loop.call_later(self._rules.again_seconds, self._wake)

    def _resend(self, link: Link, resend: Resend) -> None:
        prompt = self._ledger.find(resend.ticket)
        if prompt is None:
            link.send(Quiet(resend.ticket, self._incarnation))
        elif prompt.stage in (Stage.PUSHING, Stage.HELD):
            if prompt.stage is Stage.HELD:
                prompt.enter(Stage.PUSHING)
            prompt.round = resend.round
            self._pushing.push(prompt, resend.pages, resend.first_layer, resend.layers, again=True)
        else:
            self._ledger.stop(prompt, quiet=True)

    # ---- the way to decode is gone

    def session_ended(self, link: Link) -> None:
        for prompt in self._ledger.bound_for(link.address):
            if prompt.stage is Stage.ASKED:
                prompt.enter(Stage.QUEUED)
            elif prompt.stage is Stage.PUSHING:
                self.cannot_push(prompt)
            elif prompt.stage is Stage.HELD:
                self._ledger.stop(prompt, quiet=False)
        self._wake()

    def unreachable(self, link: Link) -> None:
        """Nobody answers there: after a lease's time prompts for it go on elsewhere."""
        oldest = self._loop.time() - self._rules.lease_seconds
        for prompt in self._ledger.bound_for(link.address):
            if prompt.stage is Stage.QUEUED and max(prompt.queued_seconds, link.ended_seconds) < oldest:
                self._lose(prompt)

    def cannot_push(self, prompt: Prompt) -> None:
        if prompt.stage is Stage.PUSHING:
            self._lose(prompt)

    def _lose(self, prompt: Prompt) -> None:
        prompt.gateway.send(Lost(prompt.ticket, Reason.CANNOT_PUSH))
        self._ledger.stop(prompt, quiet=False)
