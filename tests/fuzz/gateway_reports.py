"""Fuzz target of the gateway's half of Attach: a worker sends any Hello and then any report, in any order.

Sound workers serve requests beside it. A report is refused, or changes only requests that this worker computes: the
others keep their attempt and their tokens. What the gateway shows of its mesh can be made after every case: metrics,
alarms, the state for pages, and spans as they are exported."""

from random import Random
from typing import Any, cast, get_args

from gateway.attaching.service import Gateway
from gateway.core.interface import ChoiceRequest
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.text import head, lines
from gateway.observability.ui_state import maps_of, state_of
from gateway.routing.router import Local
from gateway.tracing.traces import RecentTraces
from gateway.workers.attached import AttachedWorker
from mesh.messages.codec import UP
from mesh.messages.jobs import End, FullKind, Reason, Sampling, Ticket, Tier, Token
from mesh.messages.message import Up
from mesh.messages.report_checks import report_problem
from mesh.messages.reports import Full, Hello, Load, Lost, PrefixChange, TokenOf, Tokens
from mesh.network.memory_network import MemoryNetwork
from mesh.sessions.session import BadMessage
from mesh.telemetry.otlp_bytes import Batch
from mesh.telemetry.spans import RecordingTelemetry
from tests.fuzz.case_loop import case_loop
from tests.fuzz.cases import Wrong, chance
from tests.fuzz.drawn_messages import drawn, odd, over_the_wire
from tests.unit.gateway.fake_mesh import RecordingSession

KINDS = get_args(Up)
WALL_SECONDS = 1.7e9  # wall time at which the gateway's clock began
BAD = 9  # incarnation of the worker that is not sound


class _Session(RecordingSession):
    ended = expired = False

    def close(self) -> None:
        self.ended = True


class Serving:
    """A gateway with two sound workers of each tier, three requests, and the worker that is not sound."""

    def __init__(self, rng: Random) -> None:
        self.rng, self.telemetry = rng, RecordingTelemetry()
        self.metrics = MetricsByModel({"m": 4096})
        traces = RecentTraces(self.telemetry, random=Random(1))
        self.gateway = Gateway(
            MemoryNetwork(Random(1)),
            random=Random(2),
            model="m",
            local=Local.NEVER,
            traces=traces,
            observer=self.metrics.observer,
        )
        self._attach("p1", Tier.PREFILL, 1)
        self._attach("d1", Tier.DECODE, 2)
        self.bad: AttachedWorker | None = None

    def _attach(self, name: str, tier: Tier, incarnation: int) -> AttachedWorker | None:
        return self.gateway.attaching.on_hello(cast(Any, _Session()), self._hello(name, tier, incarnation))

    def _hello(self, name: str, tier: Tier, incarnation: int) -> Hello:
        load = Load(free_pages=64, total_pages=64, tokens_per_second=100.0, free_places=8)
        return Hello(tier, incarnation, name, "a", "print", "m", "0", 4, 4096, load, PrefixChange(0), name)

    def greet(self) -> bool:
        """Hello of the worker that is not sound; False: the gateway has refused it."""
        hello = self._hello("bad", self.rng.choice((Tier.PREFILL, Tier.DECODE)), BAD)
        hello = odd(self.rng, hello) if chance(self.rng, 0.3) else hello
        got = over_the_wire(self.rng, UP, hello, broken=0.1)
        if not isinstance(got, Hello):
            return False
        self.bad = self.gateway.attaching.on_hello(cast(Any, _Session()), got)
        return self.bad is not None

    def accept(self) -> None:
        for _ in range(3):
            self.gateway.submit(ChoiceRequest("r", "m", tuple(range(6)), (), Sampling(max_tokens=4)))

    def message(self) -> Up:
        rng = self.rng
        tickets = [each.ticket for each in self._requests(mine=True) if each.ticket is not None]
        ticket = rng.choice(tickets) if tickets else Ticket(1, 1, bytes(16))
        match rng.randrange(8):
            case 0:
                return Lost(ticket, rng.choice(list(Reason)), "why")
            case 1:
                return Full(ticket, rng.choice(list(FullKind)))
            case 2 | 3:
                tokens = (Token(position, 7, -0.5, end=rng.choice(list(End))) for position in range(rng.randint(1, 3)))
                return Tokens(tuple(TokenOf(ticket, token) for token in tokens))
            case _:
                message = drawn(rng, rng.choice(KINDS))
                return cast(Up, odd(rng, message) if chance(rng, 0.2) else message)

    def _requests(self, *, mine: bool) -> list[Any]:
        every, bad = self.gateway.sequencer.requests.values(), self.bad.incarnation if self.bad is not None else BAD
        return [each for each in every if (bad in (each.prefill, each.decode)) == mine]

    def report(self) -> bool:
        """One report; False: its worker is expelled."""
        assert self.bad is not None
        message = over_the_wire(self.rng, UP, self.message(), broken=0.1)
        if message is None:
            return True
        others = [(each, each.ticket, len(each.shown)) for each in self._requests(mine=False)]
        if why_not := report_problem(message):
            self.gateway.attaching._expel(self.bad.session, self.bad, why_not)
            return False
        try:
            self.gateway.attaching.on_report(self.bad, message)
        except BadMessage:
            return False
        for request, ticket, shown in others:
            if request.ended or request.ticket != ticket or len(request.shown) != shown:
                raise Wrong(f"{message} changed a request that its sender does not compute")
        return True

    def show(self, everything: bool) -> None:
        """All that people and collectors see of the mesh."""
        self.gateway.alarms()
        self.gateway.refused_workers()
        state_of(self.gateway)
        maps_of(self.gateway)
        batch = Batch(WALL_SECONDS)
        for span in self.telemetry.spans:
            batch.add(span)
        batch.encoded()
        if everything:
            collector = MeshCollector(
                self.gateway, self.metrics, name="g", vllm=True, clock=lambda: 5.0, spans_dropped=lambda: 0
            )
            for each in collector.collect():
                if each is not None:
                    head(each[0], openmetrics=True) + "".join(lines(*each, wall_offset=0.0))


def gateway_reports(rng: Random) -> bool:
    """A case reaches deep states when the worker is attached and a report of it was taken."""
    with case_loop() as loop:
        case = Serving(rng)
        attached = case.greet()
        case.accept()
        taken = 0
        while attached and taken < 8 and chance(rng, 0.9) and case.report():
            taken += 1
        loop.turn()
        if attached and case.bad is not None:
            case.show(everything=chance(rng, 0.05))
            case.gateway.attaching.on_session_end(case.bad)
        case.show(everything=False)
        loop.run(case.gateway.attaching.aclose())
        return taken > 0
