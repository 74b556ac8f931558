"""The parts of a prefill worker without its loop: one decode worker, whose link and writer are the test's."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from engine.pool.horizon import Horizon
from engine.pool.pages import PagePool
from engine.step.plan import Piece, Plan
from kvtransfer.transfer import Span, TransferError
from mesh.messages.jobs import Job, Sampling, Ticket, Token
from mesh.messages.kv_messages import Landing, Quiet
from mesh.messages.message import Message
from mesh.messages.page_shape import ROWS, PageSegment, PageShape
from mesh.messages.reports import Begun
from mesh.rules import RULES
from mesh.timing.speed import Speed
from prefill_svc.handoff import HandOff
from prefill_svc.links import DecodeLink
from prefill_svc.measures import PrefillMeasures
from prefill_svc.pages import PrefillPages
from prefill_svc.prompts import Prompt, PromptPhase, Prompts
from prefill_svc.pushing import Pushing

PAGE_TOKENS = 4
LAYERS = 2
LAYER_BYTES = 64
SHAPE = PageShape(PAGE_TOKENS, (PageSegment(ROWS, "model", LAYERS, LAYER_BYTES),))
DECODE_INCARNATION = 7
OWN_INCARNATION = 5


class SentMessages:
    """A session that keeps what is sent."""

    ended = False

    def __init__(self) -> None:
        self.closed = 0
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed += 1

    def taken(self) -> list[Message]:
        """The messages sent since the last call, without Begun, which says that a prompt's turn has come."""
        sent, self.sent = self.sent, []
        return [message for message in sent if not isinstance(message, Begun)]


class ManualWriter:
    """A writer whose writes complete, or fail, when the test says so."""

    name = "manual"
    one_sided = True
    bytes_written = 0

    def __init__(self, shape: PageShape = SHAPE) -> None:
        self.shape, self.closed = shape, False
        self.spans: list[Span] = []
        self.rounds: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []

    async def write(self, ticket: bytes, spans: Sequence[Span], round: int) -> tuple[int, ...]:
        self.spans += spans
        self.rounds.append(round)
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        await done
        return tuple(100 + span.index for span in spans)

    async def complete(self, count: int | None = None, error: TransferError | None = None) -> None:
        """Complete the oldest writes, by default all of them."""
        await asyncio.sleep(0)  # writes that were just posted begin
        finished, self._waiting = self._waiting[:count], self._waiting[len(self._waiting[:count]) :]
        for done in finished:
            done.set_exception(error) if error else done.set_result(None)
        for _ in range(3):
            await asyncio.sleep(0)

    def close(self) -> None:
        self.closed = True


def of_size(page_tokens: int) -> PageShape:
    """Pages with the same content as `SHAPE` and so many tokens."""
    (segment,) = SHAPE.segments
    return PageShape(page_tokens, (replace(segment, layer_bytes=segment.layer_bytes // PAGE_TOKENS * page_tokens),))


class OneLink:
    """Links of a worker that knows one decode worker."""

    def __init__(self, link: DecodeLink) -> None:
        self.link = link

    def to(self, address: str) -> DecodeLink:
        return self.link

    def transport(self, address: str) -> str:
        return self.link.writer.name if self.link.writer is not None else ""

    def get(self, address: str) -> DecodeLink | None:
        return self.link if address == self.link.address else None


class PrefillParts:
    """The host of the parts, too: it counts how often it is woken."""

    def __init__(self, pages: int = 16, *, ahead_tokens: int = 64, decode_tokens: int = PAGE_TOKENS) -> None:
        self.woken, self.keys = 0, 0
        self.pool = PagePool(pages)
        self.decode, self.writer, self.gateway = SentMessages(), ManualWriter(of_size(decode_tokens)), SentMessages()
        self.link = DecodeLink("decode", cast(Any, self.decode), self.writer, DECODE_INCARNATION)
        self.speed = Speed()
        links = cast(Any, OneLink(self.link))
        self.pages = PrefillPages(self.pool, horizon=Horizon(0, PAGE_TOKENS), chunk_tokens=8, numerics="a")
        self.prompts = Prompts(
            self,
            links,
            self.pages,
            measures=PrefillMeasures(step_tokens=64, page_bytes=64),
            incarnation=OWN_INCARNATION,
            priority_seconds=RULES.priority_seconds,
        )
        self.pushing = Pushing(
            links,
            self.prompts,
            shape=SHAPE,
            report_seconds=0.25,
            speed=self.speed,
        )
        self.reserved = 0  # pages for an older prompt that is examined
        self.handoff = HandOff(
            self,
            links,
            self.pages,
            self.prompts,
            self.pushing,
            incarnation=OWN_INCARNATION,
            ahead_tokens=ahead_tokens,
            reserved=lambda younger: self.reserved,
            rules=RULES,
        )

    def wake(self) -> None:
        self.woken += 1

    def from_decode(self, link: DecodeLink, message: Message) -> None:
        self.handoff.on_message(link, message)

    def link_ended(self, link: DecodeLink) -> None:
        self.handoff.link_ended(link)

    def link_unreachable(self, link: DecodeLink) -> None:
        self.handoff.link_unreachable(link)

    # ---- prompts in each phase

    def queued(
        self,
        request: int = 1,
        tokens: int = 8,
        *,
        attempt: int = 1,
        priority: int = 0,
        deadline_seconds: float | None = None,
        start_seconds: float | None = None,
        incarnation: int = DECODE_INCARNATION,
    ) -> Prompt:
        self.keys += 1
        ids = tuple(range(100 * request, 100 * request + tokens))
        ticket, limits = Ticket(request, attempt, bytes(16)), {"priority": priority, "start_seconds": start_seconds}
        job = Job(ticket, ids, (), Sampling(), deadline_seconds, **cast(Any, limits))
        now = asyncio.get_running_loop().time()
        prompt = Prompt(self.keys, job, cast(Any, self.gateway), "decode", incarnation, now)
        self.prompts.add(prompt)
        return prompt

    def asked(self, request: int = 1, tokens: int = 8, *, deadline_seconds: float | None = None) -> Prompt:
        prompt = self.queued(request, tokens, deadline_seconds=deadline_seconds)
        self.handoff.ask()
        assert prompt.phase is PromptPhase.ASKED
        self.decode.taken()
        return prompt

    def landing(self, prompt: Prompt, first_page: int = 0) -> Landing:
        """Decode's Landing for every page of the prompt from `first_page` on; its page ids begin at 40."""
        count = -(-prompt.total // self.writer.shape.page_tokens)
        return Landing(prompt.ticket, first_page, tuple(range(40 + first_page, 40 + count)))

    def pushing_prompt(self, request: int = 1, tokens: int = 8, *, deadline_seconds: float | None = None) -> Prompt:
        prompt = self.asked(request, tokens, deadline_seconds=deadline_seconds)
        self.handoff.on_message(self.link, self.landing(prompt))
        assert prompt.phase is PromptPhase.PUSHING
        return prompt

    async def held(self, request: int = 1, tokens: int = 8, *, deadline_seconds: float | None = None) -> Prompt:
        prompt = self.pushing_prompt(request, tokens, deadline_seconds=deadline_seconds)
        self.compute(prompt)
        await self.writer.complete()
        self.sample(prompt)
        assert prompt.phase is PromptPhase.HELD
        self.decode.taken()
        return prompt

    def compute(self, prompt: Prompt, start: int = 0, stop: int | None = None) -> None:
        """A step computes these tokens of the prompt, all layers in one group."""
        self.pushing.computed(self.plan(prompt, start, stop), 0, LAYERS)
        prompt.done = prompt.total if stop is None else stop

    def plan(self, prompt: Prompt, start: int = 0, stop: int | None = None) -> Plan:
        tokens = prompt.job.tokens[start:stop]
        last = start + len(tokens) == prompt.total
        piece = Piece(prompt.key, tokens, start, prompt.own.pages, int(last), 0, prompt.job.sampling if last else None)
        return Plan(1, (piece,))

    def sample(self, prompt: Prompt) -> None:
        """The prompt's first token comes out of its last step."""
        prompt.compute_seconds, prompt.first = 0.0, Token(0, 9)
        self.pushing.commit(prompt)


def quiet(prompt: Prompt) -> Quiet:
    return Quiet(prompt.ticket, OWN_INCARNATION)


def order(parts: PrefillParts) -> list[int]:
    return [prompt.ticket.request for prompt in parts.prompts]


def pushing(*asked: int, **more: Any) -> tuple[PrefillParts, Prompt]:
    """The parts, and a prompt whose pages go to decode."""
    parts = PrefillParts()
    return parts, parts.pushing_prompt(*asked, **more)
