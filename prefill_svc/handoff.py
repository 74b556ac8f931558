"""Prefill's half of the hand-off: sends Ready, handles decode's answers, and ends prompts when a session ends.

Step 3 of a request's life and its repairs: the moves of the table "Prompt at prefill" in docs/protocol.md. Prefill
never waits for pages: a prompt that got Later, or no answer, lets others pass."""

import asyncio
from collections.abc import Callable

from engine.examining.examined import Seniority
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Abort, Landed, Landing, Later, Quiet, Ready, Resend
from mesh.messages.message import Message
from mesh.rules import Rules
from mesh.sessions.session import refuse
from prefill_svc.links import DecodeLink, Links, PrefillHost
from prefill_svc.message_checks import landing_problem, resend_problem, targets_of
from prefill_svc.pages import PrefillPages
from prefill_svc.prompts import Prompt, PromptPhase, Prompts
from prefill_svc.pushing import Pushing


def may_ask(prompt: Prompt) -> bool:
    """Rule [one_ready]: a prompt whose Ready is unanswered sends no second one. Two Landings could answer two Readys:
    decode frees the pages of the first when Quiet declines it, while the second lets this worker write them."""
    return prompt.phase is PromptPhase.QUEUED


def expects_landing(prompt: Prompt) -> bool:
    """Rule [one_ready]: only the Landing that answers the prompt's one Ready counts. A further Landing may name pages
    that decode has freed, because Quiet has declined them before."""
    return prompt.phase is PromptPhase.ASKED


def answer_unknown(link: DecodeLink, ticket: Ticket, incarnation: int) -> None:
    """Rule [requiet]: a message for an unknown ticket is answered Quiet, since no write of it is in flight. Without the
    answer decode would keep its pages for a ticket whose first Quiet was lost with a session."""
    link.send(Quiet(ticket, incarnation))


class HandOff:
    def __init__(
        self,
        host: PrefillHost,
        links: Links,
        pages: PrefillPages,
        prompts: Prompts,
        pushing: Pushing,
        *,
        incarnation: int,
        ahead_tokens: int,
        reserved: Callable[[Seniority], int],  # pages for an older prompt that is examined here and waits
        rules: Rules,
    ) -> None:
        self._host = host
        self._links = links
        self._pages = pages
        self._prompts = prompts
        self._pushing = pushing
        self._incarnation, self._ahead_tokens = incarnation, ahead_tokens
        self._rules, self._reserved = rules, reserved
        # The most senior prompt that waits for nothing but own pages: its seniority and how many it needs.
        self.starved: tuple[Seniority, int] | None = None
        self._loop = asyncio.get_running_loop()

    def ask(self) -> None:
        """Send Ready for the prompts whose turn comes within the next steps, the most senior first."""
        now, room = self._loop.time(), self._pages.available
        self.starved = None
        ahead = sum(p.remaining for p in self._prompts if p.computing)  # tokens that are computed before the next ones
        for prompt in self._prompts:
            if prompt.phase is PromptPhase.ASKED and not prompt.answer.over:
                ahead += prompt.remaining
            link, needed = self._links.get(prompt.decode_address), self._pages.needed(prompt.total)
            full = needed + self._reserved(self._prompts.seniority(prompt)) > room
            reachable = link is not None and link.up and link.incarnation == prompt.decode_incarnation
            too_early = ahead >= self._ahead_tokens or not prompt.later.over
            if link is None or not reachable or too_early or not may_ask(prompt):
                continue
            if full:
                self.starved = self.starved or (self._prompts.seniority(prompt), needed)
                continue
            ahead, room = ahead + prompt.remaining, room - needed
            if prompt.phase is PromptPhase.QUEUED:
                prompt.enter(PromptPhase.ASKED)
            prompt.record.asked(now)
            link.send(Ready(prompt.ticket))
            prompt.answer.begin(self._rules.ready_seconds, self._host.wake)

    def on_message(self, link: DecodeLink, message: Message) -> None:
        match message:
            case Landing():
                self._land(link, message)
            case Later(ticket=ticket):
                if (prompt := self._prompts.find(ticket)) and prompt.phase is PromptPhase.ASKED:
                    self._postpone(prompt)
            case Resend():
                self._resend(link, message)
            case Landed(ticket=ticket):
                if prompt := self._prompts.find(ticket):
                    self._prompts.stop(prompt, quiet=False)
            case Abort(ticket=ticket):
                if prompt := self._prompts.find(ticket):
                    self._prompts.stop(prompt, quiet=True)
                else:
                    answer_unknown(link, ticket, self._incarnation)
            case _:
                refuse(f"a decode worker does not send {type(message).__name__}")
        self._host.wake()

    def _land(self, link: DecodeLink, landing: Landing) -> None:
        prompt = self._prompts.find(landing.ticket)
        if prompt is None:
            answer_unknown(link, landing.ticket, self._incarnation)
        elif prompt.phase is PromptPhase.STOPPING:
            self._prompts.stop(prompt, quiet=True)
        elif expects_landing(prompt):
            refuse(landing_problem(landing, prompt.total, link.writer, bands := self._pages.bands))
            assert link.writer is not None, "landing_problem has looked"
            sent = max(landing.first_page // bands.count, landing.first_windowed)  # stretches before it are not
            sent_tokens = sent * link.writer.shape.page_tokens
            if self._pages.needed(prompt.total, sent_tokens) > self._pages.total:
                self._prompts.lose(prompt, "too_large")
                link.send(Quiet(landing.ticket, self._incarnation))
            elif own := self._pages.take(prompt.job.tokens, prompt.job.salt, sent_tokens, prompt.job.adapter):
                prompt.enter(PromptPhase.PUSHING)
                prompt.landing, prompt.landed_seconds = landing, self._loop.time()
                prompt.transport, prompt.shape = link.writer.name, link.writer.shape
                prompt.targets = targets_of(landing, prompt.total, link.writer.shape, bands)
                prompt.own, prompt.done = own, own.cached
                prompt.begins(prompt.landed_seconds)
                self._pushing.landed(prompt)
            else:  # other prompts have taken the pages since Ready was sent
                self._postpone(prompt)
                link.send(Quiet(landing.ticket, self._incarnation))

    def _postpone(self, prompt: Prompt) -> None:
        """Let other prompts pass, and ask again in a while."""
        if prompt.phase is PromptPhase.ASKED:
            prompt.enter(PromptPhase.QUEUED)
        prompt.later.begin(self._rules.again_seconds, self._host.wake)

    def _resend(self, link: DecodeLink, resend: Resend) -> None:
        prompt = self._prompts.find(resend.ticket)
        if prompt is None:
            answer_unknown(link, resend.ticket, self._incarnation)
        elif prompt.phase in (PromptPhase.PUSHING, PromptPhase.HELD):
            refuse(resend_problem(resend, prompt.targets, prompt.shape))
            if prompt.phase is PromptPhase.HELD:
                prompt.enter(PromptPhase.PUSHING)
            prompt.round = resend.round
            self._pushing.push(prompt, resend.pages, resend.first_layer, resend.layers, again=True)
        else:
            self._prompts.stop(prompt, quiet=True)

    # ---- the link to decode

    def link_ended(self, link: DecodeLink) -> None:
        for prompt in self._prompts.bound_for(link.address):
            if prompt.phase is PromptPhase.ASKED:
                prompt.enter(PromptPhase.QUEUED)
            elif prompt.phase is PromptPhase.PUSHING:
                self._prompts.lose(prompt, "session_ended")
            elif prompt.phase is PromptPhase.HELD:
                self._prompts.stop(prompt, quiet=False)
        self._host.wake()

    def link_unreachable(self, link: DecodeLink) -> None:
        """Report Lost for prompts that have waited for this decode worker for a whole lease."""
        oldest = self._loop.time() - self._rules.lease_seconds
        for prompt in self._prompts.bound_for(link.address):
            if prompt.phase is PromptPhase.QUEUED and max(prompt.queued_seconds, link.ended_seconds) < oldest:
                self._prompts.lose(prompt, "unreachable")
