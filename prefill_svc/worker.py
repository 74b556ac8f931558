"""The prefill worker: steps 3, 4, 5 and 9 of a request's life, in the order in which they happen.

It sends Ready at most two steps before a prompt's turn, computes prompts in chunks under a token budget, pushes the
pages that a chunk fills after every group of layers, and sends the first token at once, while the last pages land. New
prompts are taken in `prefill_svc/intake.py`, the messages of the hand-off are handled in `prefill_svc/handoff.py`,
writes in `prefill_svc/pushing.py`, and the ends of prompts in `prefill_svc/prompts.py`."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial

from engine.adapters.held import no_adapters
from engine.adapters.orders import AdapterOrders
from engine.examining.examinations import Examinations
from engine.loading.worker_engine import WorkerEngine
from engine.pool.horizon import Horizon
from engine.pool.isolation import Isolation
from engine.pool.ledger import Ledger
from engine.step.plan import Plan, Result
from kvtransfer.transfer import Pool, Transport
from mesh.messages.kv_messages import KvHello
from mesh.messages.message import Message
from mesh.messages.orders import Cancel, Examine, Prefill
from mesh.messages.reports import Hello, Load
from mesh.rules import Rules
from mesh.sessions.legs import Outbox, StepSampler
from mesh.sessions.membership import Membership
from mesh.sessions.session import BadMessage, Session
from mesh.timing.loop_monitor import LoopMonitor
from mesh.timing.speed import Speed
from prefill_svc.handoff import HandOff
from prefill_svc.holders import holders
from prefill_svc.intake import PromptIntake
from prefill_svc.links import DecodeLink, Links
from prefill_svc.measures import PrefillMeasures
from prefill_svc.pages import PrefillPages
from prefill_svc.planning import PrefillPlanning
from prefill_svc.prompts import Prompt, PromptPhase, Prompts
from prefill_svc.pushing import Pushing


class PrefillWorker:
    """The host of its parts, see `PrefillHost`."""

    def __init__(
        self,
        member: Membership,
        engine: WorkerEngine,
        pool: Pool,
        *,
        kv_hello: KvHello,
        transports: Mapping[str, Transport],
        chunk_tokens: int,
        step_tokens: int,
        drafts: bool = False,  # the model has a draft, which reads every prompt too
    ) -> None:
        hello, rules, pages = member.hello, member.rules, engine.pages
        self.pages, self.pool, self.runner = pages, pool, engine.runner
        self.isolation = Isolation(engine.runner, pages)
        self.plans: list[Plan] | None = None  # a test or benchmark that wants the log of plans puts a list here
        self._loop, self._work, self._monitor = asyncio.get_running_loop(), asyncio.Event(), LoopMonitor()
        self._steps, self._speed = 0, Speed()
        self._measures = PrefillMeasures(step_tokens=step_tokens, page_bytes=pool.shape.page_bytes)
        self._outbox = Outbox(self._monitor)
        self._sampler = StepSampler(self._outbox, member.trace_steps)
        horizon = Horizon.of(pages.bands, hello.page_tokens)
        own = self._own = PrefillPages(pages, horizon=horizon, chunk_tokens=chunk_tokens, numerics=hello.numerics)
        self.adapters = held = (engine.adapters or no_adapters()).waking(self.wake)
        self._examinations = self._make_examinations(hello, drafts=drafts, rules=rules)
        self.ledger = Ledger(pages, lambda: [*holders(self.prompts), *self._examinations.holders()])
        self.attachments = member.attachments(
            load=self._load,
            cached=pages.hashes,
            on_message=self._from_gateway,
            on_end=self._gateway_ended,
            pages=self.ledger,
            on_activity=self._monitor.active,
            measures=lambda: self._measures.message(self.counts()),
            adapters=AdapterOrders(held),
        )
        links = partial(Links, self, member.network, rules=rules, on_activity=self._monitor.active)
        self.links = links(hello=kv_hello, transports=transports, pool=pool)
        self.prompts = Prompts(
            self,
            self.links,
            own,
            measures=self._measures,
            incarnation=hello.incarnation,
            priority_seconds=rules.priority_seconds,
        )
        parts, masker = (self.prompts, self.links, own, self._outbox), engine.masker
        self._intake = PromptIntake(*parts, adapters=held, wake=self.wake, floor=engine.floor, masker=masker)
        pushing = partial(Pushing, self.links, self.prompts, shape=pool.shape, bands=pages.bands)
        self._pushing = pushing(report_seconds=rules.progress_seconds / 8, speed=self._speed)
        self._planning = PrefillPlanning(
            self.prompts,
            own,
            self._examinations,
            page_tokens=hello.page_tokens,
            chunk_tokens=chunk_tokens,
            step_tokens=step_tokens,
            drafts=drafts,
        )
        self._handoff = HandOff(
            self,
            self.links,
            own,
            self.prompts,
            self._pushing,
            incarnation=hello.incarnation,
            ahead_tokens=2 * step_tokens,
            reserved=self._examinations.reserved,
            rules=rules,
        )

    def _make_examinations(self, hello: Hello, *, drafts: bool, rules: Rules) -> Examinations:
        return Examinations(
            self.pages,
            page_tokens=hello.page_tokens,
            numerics=hello.numerics,
            priority_seconds=rules.priority_seconds,
            outbox=self._outbox,
            wake=self.wake,
            adapters=self.adapters,
            drafts=drafts,
        )

    async def run(self) -> None:
        """The loop. Messages are handled in the sessions' callbacks, everything else here, in this order."""
        while True:
            await self._work.wait()
            self._work.clear()
            self._handoff.ask()
            while (plan := self.plan()).pieces:
                began = self._loop.time()
                result = await self.step(plan)
                seconds = self._loop.time() - began
                self._speed.measure(plan.rows, seconds)
                self._measures.step(plan, seconds)
                if self._sampler.due():
                    jobs = [(prompt.gateway, prompt.job) for prompt in self._stepped(plan)]
                    jobs += self._examinations.jobs(plan)
                    self._sampler.record(began, self._loop.time(), jobs, step=plan.step, rows=plan.rows)
                self.emit(plan, result)
                self.retire(plan)
                self._handoff.ask()
                self.report()
            self.report()

    # ---- messages from the gateway

    def _from_gateway(self, gateway: Session, message: Message) -> None:
        """Step 2 of a request's life arrives here."""
        match message:
            case Prefill():
                self._intake.queue(gateway, message)
            case Examine():
                self._examinations.add(gateway, message)
            case Cancel():
                self.prompts.cancel(message)
                self._examinations.cancel(message)
            case _:
                raise BadMessage(f"a gateway does not send {type(message).__name__} to a prefill worker")
        self.wake()

    def _gateway_ended(self, gateway: Session) -> None:
        for prompt in self.prompts:
            if prompt.gateway is gateway:
                self.prompts.drop(prompt)
        self._examinations.gateway_ended(gateway)

    # ---- what the parts report: PrefillHost

    def wake(self) -> None:
        self._work.set()

    def from_decode(self, link: DecodeLink, message: Message) -> None:
        self._handoff.on_message(link, message)

    def link_ended(self, link: DecodeLink) -> None:
        self._handoff.link_ended(link)

    def link_unreachable(self, link: DecodeLink) -> None:
        self._handoff.link_unreachable(link)

    # ---- the parts of the loop

    def plan(self) -> Plan:
        self._intake.give_up_adapters()
        self._examinations.admit(self._own.available - self.prompts.promised, elder=self._handoff.starved)
        pieces, copies = self._planning.pieces()
        self._steps += bool(pieces)
        return Plan(self._steps, pieces, copies)

    async def step(self, plan: Plan) -> Result:
        if self.plans is not None:
            self.plans.append(plan)
        prompts = self._stepped(plan)
        self.prompts.stepping = {prompt.key for prompt in prompts}
        for prompt in prompts:
            prompt.step_begins(self._loop.time())
        self._examinations.step_begins(plan)
        self._monitor.step_begins()
        result = await self.isolation.run(plan, self._pushing.computed)
        self._monitor.step_ends(result.done_seconds)
        return result

    def emit(self, plan: Plan, result: Result) -> None:
        """First tokens go to the gateway at once; Commit follows when the last write is complete."""
        for piece, sampled, fault in result.outcomes(plan):
            if piece.key in self._examinations:
                continue
            prompt = self.prompts[piece.key]
            if fault:
                self.prompts.fail(prompt, fault)
                continue
            prompt.done = piece.stop
            prompt.record.chunk(self._loop.time(), len(piece.tokens), prompt.own.cached, len(plan.pieces))
            self._own.copied(prompt.own)
            self._own.publish(prompt.own, prompt.done)
            if sampled and prompt.phase is PromptPhase.PUSHING:
                prompt.show_first(piece.position, sampled[0], self._loop.time())
                self._pushing.commit(prompt)
        self._examinations.step_ends(plan, result)

    def _stepped(self, plan: Plan) -> list[Prompt]:
        """The prompts of a step that go to decode."""
        return [self.prompts[piece.key] for piece in plan.pieces if piece.key in self.prompts]

    def retire(self, plan: Plan) -> None:
        """The step is over: prompts that stopped during it give their pages back."""
        prompts, self.prompts.stepping = self._stepped(plan), set()
        for prompt in prompts:
            self.prompts.settle(prompt)

    def report(self) -> None:
        self.ledger.check()
        self.attachments.report(self._load(), *self.pages.changes())

    def _load(self) -> Load:
        return self._examinations.join(self.prompts.load(self._speed.tokens_per_second))

    async def measure(self) -> None:
        await self.attachments.push_measures(self._measures.loop_delay.observe)

    @property
    def busy(self) -> bool:
        return len(self.prompts) + len(self._examinations) > 0

    def counts(self) -> dict[str, int]:
        """Since the start: commits, repeated bytes, all page bytes written, steps. Now: pages by state."""
        pages = {f"pages_{state}": count for state, count in asdict(self.pages.counts()).items()}
        parts = (
            self._pushing,
            self.links,
            self.attachments,
            self._examinations,
            self.isolation,
            self.ledger,
            self.adapters,
        )
        return {name: count for part in parts for name, count in part.counts().items()} | {"steps": self._steps} | pages

    async def aclose(self) -> None:
        await self.links.aclose()
        await self.attachments.aclose()
