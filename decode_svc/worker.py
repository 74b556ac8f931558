"""The decode worker: steps 7 and 8 of a request's life.

One loop, one step at a time for all running requests: a row for each request in decode with its drafts, and a chunk of
a prompt that is prefilled here (*local*), so that a long prompt delays no other request by more than a chunk. Requests
come and go in decode_svc/intake.py, and pages from prefill land in decode_svc/handoff/landings.py. What a step holds is
decided in decode_svc/planning.py, its drafts in decode_svc/speculation/speculation.py. Decode emits from the attempt's
base on, the token that prefill sampled included: two streams race, and the gateway orders them."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import repeat

from decode_svc.chunk_size import ChunkSize
from decode_svc.emission import Emission, extend, prefilled_here
from decode_svc.flights import Flight, Flights
from decode_svc.growth import Growth
from decode_svc.handoff.landings import Landings
from decode_svc.handoff.room import Room
from decode_svc.handoff.sessions import Choose, Sessions
from decode_svc.holders import holders
from decode_svc.intake import Intake
from decode_svc.measures import DecodeMeasures
from decode_svc.planning import Planning
from decode_svc.request.requests import DecodePhase, DecodeRequest
from decode_svc.speculation.speculation import Speculation
from engine.adapters.held import no_adapters
from engine.adapters.orders import AdapterOrders
from engine.examining.examinations import Examinations
from engine.loading.worker_engine import WorkerEngine
from engine.pool.horizon import Horizon, held
from engine.pool.isolation import Isolation
from engine.pool.ledger import Ledger
from engine.step.plan import Piece, Plan, Result
from kvtransfer.transfer import Pool, Receiver
from mesh.messages.jobs import End, Reason
from mesh.messages.kv_messages import KvHello
from mesh.messages.reports import Load, Lost
from mesh.network.interface import Channel
from mesh.sessions.legs import Outbox, StepSampler
from mesh.sessions.membership import Membership
from mesh.timing.loop_monitor import LoopMonitor


class DecodeWorker:
    """Runs the loop and is the `DecodeHost` of the parts that it holds."""

    def __init__(
        self,
        member: Membership,
        engine: WorkerEngine,
        pool: Pool,
        *,
        kv_hello: KvHello,
        receivers: Mapping[str, Receiver],
        choose: Choose,
        speculation: Speculation,
        chunk_size: ChunkSize,
        max_batch: int,
    ) -> None:
        hello, rules, pages = member.hello, member.rules, engine.pages
        self.pages, self.pool, self.requests = pages, pool, dict[int, DecodeRequest]()
        self.plans: list[Plan] | None = None  # a test or benchmark that wants the plan log puts a list here
        self.isolation, self._speculation = Isolation(engine.runner, pages), speculation
        self._loop, self._work = asyncio.get_running_loop(), asyncio.Event()
        self._flights, self._emission, self._monitor = Flights(), Emission(), LoopMonitor()
        outbox, self._runner = Outbox(self._monitor), engine.runner
        self._read_seconds = self._step_seconds = 0.0  # when the last step was read; how long it took
        self._sampler, self._measures = StepSampler(outbox, member.trace_steps), DecodeMeasures(max_batch=max_batch)
        size, numerics, requests = hello.page_tokens, hello.numerics, self.requests
        self.adapters = (engine.adapters or no_adapters()).waking(self.wake)
        self._examinations = Examinations(
            pages,
            page_tokens=size,
            numerics=numerics,
            priority_seconds=rules.priority_seconds,
            outbox=outbox,
            wake=self.wake,
            adapters=self.adapters,
            places_first=True,
            publish=not speculation.has_draft_model,  # it does not read these prompts
        )
        horizon, reserved = Horizon.of(pages.bands, size), self._examinations.reserved
        limits = {"chunk_tokens": chunk_size.most, "max_batch": max_batch, "overtakes": rules.overtakes}
        self._room = Room(requests, pages, horizon=horizon, numerics=numerics, reserved=reserved, **limits)
        self.sessions = Sessions(kv_hello, receivers, choose, rules=rules, on_activity=self._monitor.active)
        self.landings = Landings(requests, pages, pool, self.sessions, self._room, host=self, rules=rules)
        self.landings.vocabulary = hello.vocabulary
        parts = requests, pages, self._room, self.landings.quarantine, self._emission, outbox, self._examinations
        self._intake = Intake(*parts, self.adapters, floor=engine.floor, masker=engine.masker, host=self, rules=rules)
        self.ledger = Ledger(pages, lambda: holders(requests, self._flights, self.landings, self._examinations))
        self._growth = Growth(requests, pages, horizon=horizon, numerics=numerics, host=self)
        self._planning = Planning(requests, self._growth, speculation, horizon=horizon, chunk_size=chunk_size)
        self.attachments = member.attachments(
            load=self._load,
            cached=pages.hashes,
            on_message=self._intake.on_message,
            on_end=self._intake.gateway_ended,
            pages=self.ledger,
            on_activity=self._monitor.active,
            measures=lambda: self._measures.message(self.counts()),
            adapters=AdapterOrders(self.adapters),
        )

    async def listen(self, address: str) -> str:
        return await self.attachments.listen(address, {Channel.KV: partial(self.sessions.serve, host=self.landings)})

    async def run(self) -> None:
        """The loop. Messages are received in the sessions' callbacks; everything else happens here, in this order."""
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

    # ---- the parts of the loop

    def admit(self) -> None:
        """Refuse waiting requests that cannot fit any more; admit local prompts that have room, the oldest first."""
        self._intake.refuse_hopeless()
        self._intake.admit_local()
        self._intake.admit_examinations()

    def plan(self) -> Plan:
        return self._planning.plan(self._examinations.pieces, self._examinations.rows_left)

    def launch(self, plan: Plan) -> Flight:
        if self.plans is not None:
            self.plans.append(plan)
        now, requests = self._loop.time(), dict[int, DecodeRequest]()
        for piece in plan.pieces:
            if piece.key not in self._examinations:
                requests[piece.key] = self.requests[piece.key]
                requests[piece.key].step_begins(now, piece)
        self._examinations.step_begins(plan)
        self._monitor.step_begins()
        return self._flights.begin(plan, asyncio.ensure_future(self._runner.run(plan)), requests)

    def launch_ahead(self, flight: Flight) -> Flight | None:
        """Launch the next step before this one is read, if it is decided already and the runner gains by it."""
        useful = self._runner.ahead and not self.isolation.repaired and not len(self._examinations)
        plan = self._planning.follow(flight) if useful else None
        return self.launch(plan) if plan is not None else None

    async def read(self, flight: Flight) -> Result:
        began = self._loop.time()
        result = await self.isolation.result(flight.plan, flight.result)
        self._monitor.step_ends(result.done_seconds)
        began, self._read_seconds = max(began, self._read_seconds), self._loop.time()
        self._step_seconds = self._read_seconds - began
        self._planning.measure(flight.plan, self._step_seconds)
        if self._sampler.due():
            plan, jobs = flight.plan, [(request.gateway, request.job) for request in flight.requests.values()]
            jobs += self._examinations.jobs(plan)
            self._sampler.record(began, self._read_seconds, jobs, step=plan.step, rows=plan.rows)
        return result

    def emit(self, flight: Flight, result: Result) -> None:
        """Append the tokens that count to each request's text, and send each gateway one message with all of them."""
        for lost, fault in flight.failed(result, self.requests):
            self.lost(lost, Reason.FAILED, fault)
            self.drop(lost)
        plan, proposals, emitted = flight.plan, result.proposed or repeat(()), 0
        for piece, sampled, proposed in zip(plan.pieces, result.sampled, proposals, strict=False):
            request = self.requests.get(piece.key)
            if request is None or request is not flight.requests[piece.key]:
                continue  # the request ended during the step; its next attempt has other pages
            request.steps += 1
            if piece.masks is not None and not sampled:
                self._sit_out(request, piece)
                continue
            tokens = extend(request, piece, self._speculation.verified(piece, sampled))
            request.record.step_ends(self._read_seconds, piece, len(tokens), request.cached, len(flight.requests))
            self._speculation.settle(request, piece, len(tokens), proposed)
            self._publish(request)
            flight.doomed.extend(self._growth.behind(request))
            emitted += len(tokens)
            if tokens and request.prefill is None and tokens[0].position == request.job.base:
                request.gateway.send(prefilled_here(request, self._loop.time()))
            for token in tokens:
                self._emission.show(request, token)
            if tokens and tokens[-1].end is not End.NONE:
                self.drop(request)
        self._examinations.step_ends(plan, result)
        self._emission.flush()
        self._measures.step(plan, self._step_seconds, emitted)

    def _sit_out(self, request: DecodeRequest, piece: Piece) -> None:
        """The masks of these rows are late: the request goes on once they are there. Without any it cannot go on."""
        assert piece.masks is not None and request.constraint is not None
        extend(request, piece, ())
        request.record.step_ends(self._read_seconds, piece, 0, request.cached, 1)
        if (fault := piece.masks.fault) is not None:
            self.lost(request, Reason.GRAMMAR, fault)
            self.drop(request)
        else:
            request.constraint.when_ready(self.wake)

    def retire(self, flight: Flight) -> None:
        """The step is over: pages that were kept for it are free."""
        self.pages.release(self._flights.end(flight))

    def report(self) -> None:
        self.ledger.check()
        self.attachments.report(self._load(), *self.pages.changes())

    # ---- what the parts report: DecodeHost

    def admitted(self, request: DecodeRequest) -> None:
        self._speculation.admitted(request)
        self._publish(request)
        request.running_seconds = self._loop.time()
        request.record.admitted(request.running_seconds)
        if request.landing_began_seconds is not None:
            self._measures.landed(request.running_seconds - request.landing_began_seconds)
        if (first := self._emission.show_first(request)) is not None and first.end is not End.NONE:
            self.drop(request)

    def lost(self, request: DecodeRequest, reason: Reason, detail: str = "") -> None:
        request.record.lost(self._loop.time(), reason)
        request.gateway.send(Lost(request.ticket, reason, detail))

    def starved(self, request: DecodeRequest) -> None:
        """The request waits; if no worker can release the quarantined pages that it lacks, the gateway gets Full."""
        self._intake.refuse_unfit(request)

    def drop(self, request: DecodeRequest) -> None:
        """Step 9 of a request's life: forget it, fence its landing, and free its pages once no step uses them."""
        self.requests.pop(request.key, None)
        self._room.ended(request, self._loop.time())
        if request.phase is not DecodePhase.RUNNING:
            self.landings.fence(request)
        elif not self._flights.keep(request, pages := held(request.pages)):
            self.pages.release(pages)
        request.enter(DecodePhase.ENDED)
        request.record.ended(self._loop.time(), request.steps, request.drafts)
        self.wake()

    def wake(self) -> None:
        self._work.set()

    @property
    def attached(self) -> bool:
        return bool(self.attachments.sessions)

    # ----

    def _publish(self, request: DecodeRequest) -> None:
        self._speculation.published(request, self._growth.publish(request))

    def _load(self) -> Load:
        return self._examinations.join(self._room.load(*self._planning.speeds()))

    async def measure(self) -> None:
        await self.attachments.push_measures(self._measures.loop_delay.observe)

    @property
    def busy(self) -> bool:
        return bool(self.requests) or len(self._examinations) > 0

    def counts(self) -> dict[str, int]:
        """Counters of all parts since the start, and the number of pages in each state now."""
        pages = {f"pages_{state}": count for state, count in asdict(self.pages.counts()).items()}
        own = self.landings, self._planning, self._speculation, self._examinations, self.sessions, self.attachments
        shared = self.isolation, self.ledger, self.adapters
        found = {name: count for part in (*own, *shared) for name, count in part.counts().items()}
        return {**found, **pages, "admitted_local": self._intake.admitted_local}

    async def aclose(self) -> None:
        self.sessions.close()
        self.landings.quarantine.close()
        await self.attachments.aclose()
