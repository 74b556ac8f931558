"""The decode worker: steps 6 to 8 of a request's life.

One loop, one step at a time for all running requests: a row for each in decode with its drafts, and a chunk of a
prompt that is prefilled here (*local*), so that a long prompt stretches nobody's gap by more than a chunk. What a step
holds is planning.py's, how requests come and go opening.py's, how their pages do landings.py's and growth.py's, what is
guessed ahead speculation.py's, and what the worker says of itself account.py's. Emission goes from the attempt's base
on, the token that prefill sampled included: two streams race, the gateway sorts it out."""

import asyncio
import logging
from collections.abc import Mapping
from itertools import repeat

from decode_svc.account import Account
from decode_svc.emission import Emission, extend, prefilled_here
from decode_svc.flights import Flight, Flights
from decode_svc.growth import Growth
from decode_svc.handoff.landings import Landings
from decode_svc.handoff.sessions import Choose, Peer, Peers
from decode_svc.intake import Opening
from decode_svc.planning import Planning
from decode_svc.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.speculation import Speculation
from engine.pages import PagePool
from engine.plan import Plan, Result, Runner
from kvtransfer.transfer import Pool, Receiver
from mesh.attach import Attachments
from mesh.messages import (
    End,
    Full,
    FullKind,
    Hello,
    KvHello,
    Lost,
    Message,
    PrefixChange,
    Reason,
    Tier,
)
from mesh.network import Channel, Network
from mesh.rules import RULES, Rules
from mesh.telemetry import Telemetry

log = logging.getLogger("baton.decode")


class DecodeWorker:
    def __init__(
        self,
        network: Network,
        runner: Runner,
        pages: PagePool,
        pool: Pool,
        *,
        hello: Hello,  # without load and prefix, which change
        kv_hello: KvHello,
        receivers: Mapping[str, Receiver],
        choose: Choose,
        gateways: tuple[str, ...],
        telemetry: Telemetry,
        speculation: Speculation,
        chunk_tokens: int,
        max_batch: int,
        rules: Rules = RULES,
    ) -> None:
        self.pages, self.pool, self.requests = pages, pool, dict[int, DecodeRequest]()
        self.plans: list[Plan] | None = None  # a test or benchmark that wants the plan log puts a list here
        self._runner, self._hello, self._telemetry, self._rules = runner, hello, telemetry, rules
        self._speculation = speculation
        self._loop = asyncio.get_running_loop()
        self._work = asyncio.Event()
        self._flights = Flights()
        self._read_seconds = 0.0  # when the last step was read
        self._emission = Emission()
        self.landings = Landings(
            self.requests,
            pages,
            pool,
            receivers,
            numerics=hello.numerics,
            page_tokens=hello.page_tokens,
            max_batch=max_batch,
            rules=rules,
            admitted=self._admitted,
            lost=self._lost,
            changed=self._work.set,
        )
        self._growth = Growth(
            self.requests,
            pages,
            page_tokens=hello.page_tokens,
            numerics=hello.numerics,
            preempt=self._preempt,
            starved=self._starved,
        )
        self._planning = Planning(
            self.requests, self._growth, speculation, page_tokens=hello.page_tokens, chunk_tokens=chunk_tokens
        )
        self._opening = Opening(
            self.requests,
            pages,
            self.landings,
            self._emission,
            page_tokens=hello.page_tokens,
            drop=self._drop,
            changed=self._work.set,
        )
        self._account = Account(
            self.requests,
            pages,
            landings=self.landings,
            planning=self._planning,
            speculation=speculation,
            receivers=receivers,
        )
        self.peers = Peers(
            kv_hello,
            receivers,
            choose,
            rules=rules,
            on_begin=self.landings.session_began,
            on_message=self._from_prefill,
            on_end=self.landings.session_ended,
        )
        self.attachments = Attachments(
            network,
            gateways=gateways,
            tier=Tier.DECODE,
            incarnation=hello.incarnation,
            rules=rules,
            hello=self._say_hello,
            on_message=self._opening.on_message,
            on_end=self._opening.gateway_ended,
        )

    async def listen(self, address: str) -> str:
        return await self.attachments.listen(address, {Channel.KV: self.peers.accept})

    async def run(self) -> None:
        """The loop: receive happens in the sessions' callbacks, everything else here, in this order."""
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                self.admit()
                while (plan := self.plan()).pieces:
                    flight: Flight | None = self.launch(plan)
                    while flight is not None:
                        ahead = self.launch_ahead(flight)
                        self.emit(flight, await self.read(flight))
                        self.retire(flight)
                        self.admit()
                        self.report()
                        flight = ahead
                self.report()
        finally:
            self._flights.abandon()

    # ---- the verbs

    def admit(self) -> None:
        """Local prompts that have room now, oldest first."""
        for request in self._opening.hopeless():
            self._refuse(request)
        for request in self._opening.admit_local():
            self._account.admitted_local += 1
            self._speculation.admitted(request)

    def plan(self) -> Plan:
        return self._planning.plan()

    def launch(self, plan: Plan) -> Flight:
        if self.plans is not None:
            self.plans.append(plan)
        requests = {piece.key: self.requests[piece.key] for piece in plan.pieces}
        return self._flights.begin(plan, asyncio.ensure_future(self._runner.run(plan)), requests)

    def launch_ahead(self, flight: Flight) -> Flight | None:
        """The step behind one that is not read yet, where that is known already and worth it."""
        plan = self._planning.follow(flight) if self._runner.ahead else None
        return self.launch(plan) if plan is not None else None

    async def read(self, flight: Flight) -> Result:
        began = self._loop.time()
        result = await flight.result
        seconds = self._loop.time() - max(began, self._read_seconds)
        self._account.measure(flight.plan, seconds)
        self._speculation.measure(flight.plan, seconds)
        self._read_seconds = self._loop.time()
        return result

    def emit(self, flight: Flight, result: Result) -> None:
        plan, proposals = flight.plan, result.proposed or repeat(())
        for piece, sampled, proposed in zip(plan.pieces, result.sampled, proposals, strict=False):
            request = self.requests.get(piece.key)
            if request is None or request is not flight.requests[piece.key]:
                continue  # it ended during the step; one that began anew since then has other pages
            request.steps += 1
            tokens = extend(request, piece, self._speculation.verified(piece, sampled))
            self._speculation.settle(request, piece, len(tokens), proposed)
            self._publish(request)
            if tokens and request.prefill is None and tokens[0].position == request.job.base:
                request.gateway.send(prefilled_here(request, self._loop.time()))
            for token in tokens:
                self._emission.show(request, token)
            if tokens and tokens[-1].end is not End.NONE:
                self._drop(request)
        self._emission.flush()

    def retire(self, flight: Flight) -> None:
        """The step is over: pages that nobody needs any more are free."""
        self.pages.release(self._flights.end(flight))

    def report(self) -> None:
        self.attachments.report(self._account.load(), *self.pages.changes())

    # ---- from landings

    def _from_prefill(self, peer: Peer, message: Message) -> None:
        self.landings.on_message(peer, message)

    def _admitted(self, request: DecodeRequest) -> None:
        self._speculation.admitted(request)
        self._publish(request)
        now = request.running_seconds = self._loop.time()
        self._record("kv.land", request, request.landed_from, now, pages=len(request.pages))
        first = request.produced.get(request.job.base)
        if first is not None and self._rules.first:
            self._emission.show(request, first)
            self._emission.flush()
            if first.end is not End.NONE:
                self._drop(request)
        self._work.set()

    def _lost(self, request: DecodeRequest, reason: Reason) -> None:
        request.gateway.send(Lost(request.ticket, reason))

    # ---- from growth

    def _preempt(self, request: DecodeRequest) -> None:
        self._lost(request, Reason.PREEMPTED)
        self._drop(request)

    def _starved(self, request: DecodeRequest) -> None:
        """No page and nobody to preempt: wait, unless pages that nobody may prove are what is missing."""
        if not self._opening.fits(request):
            self._refuse(request)

    def _refuse(self, request: DecodeRequest) -> None:
        request.gateway.send(Full(request.ticket, FullKind.NOW))
        self._drop(request)

    # ----

    def _drop(self, request: DecodeRequest) -> None:
        """Forget it: its landing is fenced, its pages are free when no step uses them."""
        self.requests.pop(request.key, None)
        if request.phase is DecodePhase.RUNNING:
            now = self._loop.time()
            guessed = {"drafted": request.drafts.drafted, "accepted": request.drafts.accepted}
            self._record("decode", request, request.running_seconds, now, steps=request.steps, **guessed)
            if not self._flights.keep(request, request.pages):
                self.pages.release(request.pages)
        else:
            self.landings.fence(request)
        request.enter(DecodePhase.ENDED)
        self._work.set()

    # ----

    def _publish(self, request: DecodeRequest) -> None:
        self._speculation.published(request, self._growth.publish(request))

    def _record(self, name: str, request: DecodeRequest, start: float, end: float, **attributes: int) -> None:
        self._telemetry.record(name, request.job.traceparent, start, end, **attributes)

    @property
    def busy(self) -> bool:
        return bool(self.requests)

    def counts(self) -> dict[str, int]:
        return self._account.counts()

    def _say_hello(self, address: str) -> Hello:
        prefix = PrefixChange(self.attachments.sequence, self.pages.hashes(), (), snapshot=True)
        return self._hello.at(address, self._account.load(), prefix)

    async def aclose(self) -> None:
        self.peers.close()
        self.landings.quarantine.close()
        await self.attachments.aclose()
