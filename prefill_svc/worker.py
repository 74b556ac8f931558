"""The prefill worker: step 3 to 5 of a request's life.

It asks decode for a landing one step before a prompt's turn, computes prompts in chunks under a token budget, pushes
the pages that a chunk filled after every group of layers, and sends the first token at once, while the last pages land.
It never waits for pages: a prompt that got Later lets others pass. The talk with decode is in handoff.py, the writes
are in pushing.py, and who holds which pages until when is in ledger.py."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict

from engine.batch import Remaining, chunks, prompt_piece
from engine.pages import PagePool
from engine.plan import Drafting, Piece, Plan, Result, Runner
from kvtransfer.transfer import Pool, Transport
from mesh.attach import Attachments
from mesh.messages import (
    Cancel,
    Hello,
    KvHello,
    Load,
    Lost,
    Message,
    Prefill,
    Prefilled,
    PrefixChange,
    Reason,
    Tier,
    Token,
    TokenOf,
    Tokens,
)
from mesh.network import Network
from mesh.rules import RULES, Rules
from mesh.session import Session
from mesh.speed import Speed
from mesh.telemetry import Telemetry
from prefill_svc.handoff import HandOff
from prefill_svc.ledger import Ledger
from prefill_svc.links import Links
from prefill_svc.prompts import Prompt, PromptPhase
from prefill_svc.pushing import Pushing


class PrefillWorker:
    def __init__(
        self,
        network: Network,
        runner: Runner,
        pages: PagePool,
        pool: Pool,
        *,
        hello: Hello,  # without load and prefix, which change
        kv_hello: KvHello,
        transports: Mapping[str, Transport],
        gateways: tuple[str, ...],
        telemetry: Telemetry,
        chunk_tokens: int,
        step_tokens: int,
        drafts: bool = False,  # the model has a draft, which reads every prompt too
        rules: Rules = RULES,
    ) -> None:
        self.pages, self.pool, self.runner = pages, pool, runner
        self.plans: list[Plan] | None = None  # a test or benchmark that wants the plan log puts a list here
        self._hello, self._page_tokens = hello, hello.page_tokens
        self._chunk_tokens, self._step_tokens, self._drafts = chunk_tokens, step_tokens, drafts
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._keys, self._steps, self._speed = 0, 0, Speed()
        self.ledger = Ledger(
            pages,
            page_tokens=hello.page_tokens,
            numerics=hello.numerics,
            say_quiet=lambda prompt: self._handoff.say_quiet(prompt),
            ended=self._work.set,
        )
        self.prompts = self.ledger.prompts
        self.attachments = Attachments(
            network,
            gateways=gateways,
            tier=Tier.PREFILL,
            incarnation=hello.incarnation,
            rules=rules,
            hello=self._say_hello,
            on_message=self._from_gateway,
            on_end=self._gateway_ended,
        )
        self.links = Links(
            network,
            hello=kv_hello,
            transports=transports,
            pool=pool,
            rules=rules,
            on_up=lambda link: self._work.set(),
            on_message=lambda link, message: self._handoff.on_message(link, message),
            on_end=lambda link: self._handoff.session_ended(link),
            on_unreachable=lambda link: self._handoff.unreachable(link),
        )
        self.pushing = Pushing(
            self.ledger,
            self.links,
            shape=pool.shape,
            page_tokens=hello.page_tokens,
            tell_seconds=rules.progress_seconds / 8,
            telemetry=telemetry,
            cannot_push=lambda prompt: self._handoff.cannot_push(prompt),
        )
        self._handoff = HandOff(
            self.ledger,
            self.links,
            self.pushing,
            incarnation=hello.incarnation,
            ahead_tokens=2 * step_tokens,
            telemetry=telemetry,
            rules=rules,
            wake=self._work.set,
        )

    async def run(self) -> None:
        """The loop: receive happens in the sessions' callbacks, everything else here, in this order."""
        while True:
            await self._work.wait()
            self._work.clear()
            self.ask()
            while (plan := self.plan()).pieces:
                began = self._loop.time()
                result = await self.step(plan)
                self._speed.measure(plan.rows, self._loop.time() - began)
                self.emit(plan, result)
                self.retire(plan)
                self.ask()
                self.report()
            self.report()

    # ---- the verbs

    def ask(self) -> None:
        self._handoff.ask(self.pages.available)

    def plan(self) -> Plan:
        """Chunks of the landed prompts, oldest first, under the step's budget."""
        computing = [p for p in self.prompts.values() if p.computing]
        waiting = [Remaining(p.key, p.total, p.done) for p in computing]
        pieces, copies = list[Piece](), list[tuple[int, int]]()
        for chunk in chunks(waiting, budget=self._step_tokens, chunk=self._chunk_tokens):
            prompt, size = self.prompts[chunk.key], self._page_tokens
            job, position = prompt.job, prompt.job.base
            copies.extend(prompt.copies)
            pieces.append(
                prompt_piece(
                    chunk,
                    job.tokens,
                    prompt.pages,
                    page_tokens=size,
                    sampling=job.sampling,
                    position=position,
                    drafting=Drafting(chunk.first) if self._drafts else None,
                )
            )
        self._steps += bool(pieces)
        return Plan(self._steps, tuple(pieces), tuple(copies))

    async def step(self, plan: Plan) -> Result:
        if self.plans is not None:
            self.plans.append(plan)
        self.ledger.stepping = {piece.key for piece in plan.pieces}
        for piece in plan.pieces:
            prompt = self.prompts[piece.key]
            prompt.compute_seconds = prompt.compute_seconds or self._loop.time()
        return await self.runner.run(plan, lambda first, layers: self._computed(plan, first, layers))

    def emit(self, plan: Plan, result: Result) -> None:
        """First tokens go to the gateway at once; Commit follows when the last write is complete."""
        now = self._loop.time()
        for piece, sampled in zip(plan.pieces, result.sampled, strict=True):
            prompt = self.prompts[piece.key]
            prompt.done = piece.stop
            self.ledger.copied(prompt)
            self.ledger.publish(prompt)
            if sampled and prompt.phase is PromptPhase.PUSHING:
                best = sampled[0]
                end = prompt.job.sampling.end(piece.position, best.token)
                prompt.first = Token(piece.position, best.token, best.logprob, best.top_ids, best.top_logprobs, end)
                prompt.first_seconds, prompt.bytes_before_first = now, prompt.bytes_written
                prompt.gateway.send(self._about(prompt))
                prompt.gateway.send(Tokens((TokenOf(prompt.ticket, prompt.first),)))
                self.pushing.commit(prompt)

    def retire(self, plan: Plan) -> None:
        """The step is over: prompts that ended during it may give their pages back."""
        self.ledger.stepping = set()
        for piece in plan.pieces:
            if prompt := self.prompts.get(piece.key):
                self.ledger.settle(prompt)

    def report(self) -> None:
        self.attachments.report(self._load(), *self.pages.changes())

    # ---- from the gateway

    def _from_gateway(self, gateway: Session, message: Message) -> None:
        match message:
            case Prefill():
                self._queue(gateway, message)
            case Cancel():
                self.ledger.forget(message.request, message.attempt)
            case _:
                raise TypeError(f"{type(message).__name__} is no message to a prefill worker")
        self._work.set()

    def _queue(self, gateway: Session, message: Prefill) -> None:
        job, now = message.job, self._loop.time()
        self.ledger.forget(job.ticket.request, job.ticket.attempt - 1)
        self._keys += 1
        prompt = Prompt(self._keys, job, gateway, message.decode_address, message.decode_incarnation, now)
        if self.ledger.pages_of(prompt) > self.pages.pages:
            gateway.send(Lost(job.ticket, Reason.TOO_LARGE))
            return
        self.prompts[prompt.key] = prompt
        self.links.to(prompt.decode_address)

    def _gateway_ended(self, gateway: Session) -> None:
        for prompt in list(self.prompts.values()):
            if prompt.gateway is gateway:
                self.ledger.stop(prompt, quiet=prompt.landing is not None)

    # ----

    def _about(self, prompt: Prompt) -> Prefilled:
        began = prompt.compute_seconds or prompt.first_seconds
        return Prefilled(
            prompt.ticket,
            cached_tokens=min(prompt.cached, len(prompt.job.prompt)),
            queued_seconds=began - prompt.queued_seconds,
            computed_seconds=prompt.first_seconds - began,
        )

    def _computed(self, plan: Plan, first: int, layers: int) -> None:
        self.pushing.computed(plan, first, layers, longest_step_ms=self._speed.longest_ms)

    def _load(self) -> Load:
        waiting = sum(p.phase in (PromptPhase.QUEUED, PromptPhase.ASKED) for p in self.prompts.values())
        queued = sum(p.remaining for p in self.prompts.values() if p.first is None)
        running = sum(p.computing for p in self.prompts.values())
        return Load(waiting, running, queued, self.pages.available, self.pages.pages, self._speed.tokens_per_second)

    @property
    def busy(self) -> bool:
        return bool(self.prompts)

    def counts(self) -> dict[str, int]:
        """Since the start: prompts committed to decode, page bytes written, of these Resends, steps. Now: pages."""
        return {
            "committed": self.pushing.committed,
            "bytes_written": self.links.bytes_written,
            "bytes_resent": self.pushing.bytes_resent,
            "steps": self._steps,
            **{f"pages_{state}": count for state, count in asdict(self.pages.counts()).items()},
        }

    def _say_hello(self, address: str) -> Hello:
        prefix = PrefixChange(self.attachments.sequence, self.pages.hashes(), (), snapshot=True)
        return self._hello.at(address, self._load(), prefix)

    async def aclose(self) -> None:
        await self.links.aclose()
        await self.attachments.aclose()
