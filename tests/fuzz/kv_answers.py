"""Fuzz target of prefill's half of kv.v1: a decode worker sends any message, in any order, for any ticket.

Steps compute the prompts meanwhile, and writes complete or fail. A message is refused by BadMessage; nothing else
fails, neither then nor in a later step. Every span that is written goes into a page that the prompt's Landing names,
and in the end no prompt keeps a page."""

from random import Random
from typing import cast

from kvtransfer.transfer import Span, TransferError
from mesh.messages.codec import KV_BACK
from mesh.messages.jobs import Ticket
from mesh.messages.kv_messages import Abort, KvHello, Landed, Landing, Later, Resend
from mesh.messages.message import Heartbeat, Message
from mesh.sessions.session import BadMessage
from prefill_svc.prompts import Prompt, PromptPhase
from tests.fuzz.case_loop import CaseLoop, case_loop
from tests.fuzz.cases import ODD_INTS, Wrong, chance
from tests.fuzz.drawn_messages import drawn, odd, over_the_wire
from tests.unit.prefill_svc.parts import LAYERS, PAGE_TOKENS, PrefillParts

PAGES = 16


class FuzzedPrefill:
    """The parts of a prefill worker with three prompts."""

    def __init__(self, rng: Random, loop: CaseLoop) -> None:
        self.rng, self.loop = rng, loop
        self.parts = PrefillParts(PAGES, decode_tokens=rng.choice((PAGE_TOKENS, PAGE_TOKENS, 2 * PAGE_TOKENS)))
        self.prompts = [self.parts.queued(key, tokens=rng.choice((4, 8, 11))) for key in (1, 2, 3)]
        self.landings: dict[Ticket, Landing] = {}
        self.parts.handoff.ask()
        self.checked, self.landed = 0, 0

    # ---- messages

    def message(self) -> Message:
        """Mostly what the prompt waits for, else any message of a decode worker."""
        rng, prompt = self.rng, self.rng.choice(self.prompts)
        right = self.parts.landing(prompt, rng.choice((0, 0, 0, 1)))
        if prompt.phase is PromptPhase.ASKED and chance(rng, 0.6):
            return right
        match rng.randrange(7):
            case 0:
                return Later(prompt.ticket)
            case 1:
                return Landed(prompt.ticket)
            case 2:
                return Abort(prompt.ticket)
            case 3:
                return cast(Message, drawn(rng, rng.choice((KvHello, Landing, Resend, Abort, Heartbeat))))
            case 4:
                return right
            case _:
                count = len(right.pages) + right.first_page
                pages = tuple(page for page in range(count) if chance(rng, 0.6)) or (0,)
                return Resend(
                    prompt.ticket, rng.choice((1, 2, 3, *ODD_INTS)), rng.randrange(2), rng.randint(1, 2), pages
                )

    def receive(self) -> None:
        message = self.message()
        message = odd(self.rng, message) if chance(self.rng, 0.2) else message
        got = over_the_wire(self.rng, KV_BACK, message, broken=0.1)
        if got is None or isinstance(got, Heartbeat):
            return
        asked = {prompt.ticket for prompt in self.prompts if prompt.phase is PromptPhase.ASKED}
        try:
            self.parts.handoff.on_message(self.parts.link, got)
        except BadMessage:
            return
        if isinstance(got, Landing) and got.ticket in asked and self._phase(got.ticket) is PromptPhase.PUSHING:
            self.landings[got.ticket] = got
            self.landed += 1

    def _phase(self, ticket: Ticket) -> PromptPhase:
        return next(prompt.phase for prompt in self.prompts if prompt.ticket == ticket)

    # ---- the worker goes on

    def step(self) -> None:
        """A step computes a prompt that has landed; its first token follows."""
        for prompt in self.prompts:
            if prompt.computing:
                self.parts.compute(prompt)
                self.look(prompt)
                if chance(self.rng, 0.7):
                    self.parts.sample(prompt)
        self.parts.handoff.ask()

    def write(self) -> None:
        error = TransferError("the way is broken") if chance(self.rng, 0.1) else None
        self.loop.run(self.parts.writer.complete(self.rng.choice((None, 1)), error))
        self.look(None)

    def look(self, computed: Prompt | None) -> None:
        self.loop.turn()  # writes that were posted begin
        spans = self.parts.writer.spans
        for span in spans[self.checked :]:
            self._look_at(span)
        self.checked = len(spans)
        counts = self.parts.pool.counts()
        if counts.total != PAGES:
            raise Wrong(f"the page states do not add up: {counts}")

    def _look_at(self, span: Span) -> None:
        named = any(
            landing.first_page <= span.index < landing.first_page + len(landing.pages)
            and landing.pages[span.index - landing.first_page] == span.target
            for landing in self.landings.values()
        )
        if not named or not 0 <= span.first_layer < span.first_layer + span.layers <= LAYERS:
            raise Wrong(f"{span} is written, and no Landing names its page")
        if not all(0 <= page < PAGES for page in (span.source, *span.behind)):
            raise Wrong(f"{span} reads a page that the pool does not have")


def kv_answers(rng: Random) -> bool:
    """A case reaches deep states when spans of a landing were written."""
    with case_loop() as loop:
        case = FuzzedPrefill(rng, loop)
        for _ in range(rng.randint(4, 12)):
            if chance(rng, 0.6):
                case.receive()
            else:
                rng.choice((case.step, case.write))()
        case.look(None)
        for prompt in case.prompts:
            if prompt.phase is not PromptPhase.ENDED:
                case.parts.prompts.drop(prompt)
        loop.run(case.parts.writer.complete())
        loop.run(case.parts.writer.complete())
        if case.parts.pool.counts().in_use or len(case.parts.prompts):
            raise Wrong(f"pages are kept for ever: {case.parts.pool.counts()}")
        return case.checked > 0
