"""Clients of a run. A client reads one answer, checks each token, and goes on at another gateway when its own is gone,
as the clients' stub does: with the tokens that it has, and their numerics class."""

import asyncio
from collections import deque
from functools import partial
from typing import Any

from gateway.core.interface import ChoiceRequest, TokenStream, check_class
from mesh.errors import (
    BatonError,
    Cancelled,
    ClassUnavailable,
    DeadlineExceeded,
    Overloaded,
    PoolTooSmall,
    Unavailable,
    WorkersDied,
)
from mesh.messages.jobs import End
from tests.sim.seeds.fleet import Fleet
from tests.sim.seeds.judge import justified
from tests.sim.seeds.processes import GatewayProcess
from tests.sim.seeds.refusals import refused
from tests.sim.seeds.story import Demand
from tests.sim.seeds.text import ExpectedText
from tests.sim.workers import SHAPE

BACK_OFF_SECONDS = (0.2, 3.0)
POOLED_SECONDS = 2.0  # for which a connection was open, at most, before its request comes
LATE_SECONDS = 1.0  # so long after its deadline a request must have ended, where its gateway runs
NOTICED_SECONDS = 0.001  # before its deadline, when its phase is noted


class GatewayCall:
    """One request at one gateway: what the gateway sends arrives in order."""

    def __init__(self, user: "User") -> None:
        self._user, self._fleet = user, user.fleet
        self._way: deque[Any] = deque()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.stream: TokenStream | None = None
        self.arrived = self.answered = False  # at the gateway; by it, to the end
        self.sent = 0  # what the gateway has sent

    def send(self, item: Any) -> None:
        self._way.append(item)
        self.sent += 1
        self.answered |= item is None or isinstance(item, BatonError)
        self._fleet.network.later(self._arrive)

    def cancel(self) -> None:
        """The client leaves; a call that the gateway has not begun yet ends as soon as it begins."""
        if self.stream is not None:
            self.stream.cancel()

    @property
    def served(self) -> bool:
        return self.arrived and not self.answered and not self._user.stalled

    def break_off(self) -> None:
        self.inbox.put_nowait(ConnectionError("the gateway is gone"))

    def _arrive(self) -> None:
        self.inbox.put_nowait(self._way.popleft())


class User:
    def __init__(self, fleet: Fleet, number: int, demand: Demand) -> None:
        self.fleet, self.name, self.demand = fleet, f"r{number}", demand
        self.text = ExpectedText(
            demand.prompt,
            demand.sampling,
            layers=SHAPE.layers,
            vocabulary=fleet.options.vocabulary,
            window=fleet.options.window,
            full_layers=fleet.options.full_layers,
        )
        if demand.salt:
            accents = range(len(fleet.world.classes))
            layers = {"window": fleet.options.window, "full_layers": fleet.options.full_layers}
            fleet.tenants.add(demand.salt, demand.prompt, demand.sampling, accents, fleet.options.vocabulary, **layers)
        self.numerics = ""
        self.began = self.accepted = 0.0  # start of the request, and of its latest call
        self.ended = self.cancelled = False
        self.error: BatonError | None = None
        self.calls = 0
        self.requests = set[int]()  # its numbers at gateways
        self.reads = asyncio.Event()  # cleared while the client does not read
        self.reads.set()
        self.stalled = False  # it has not read for a while: its tokens may be old
        self.process: GatewayProcess | None = None
        self._call: GatewayCall | None = None
        self._spec: ChoiceRequest | None = None
        self._gone = ""  # why the last call ended before the answer

    # ---- what faults do to it

    def cancel(self) -> None:
        self.cancelled = True
        if self.process is not None and self._call is not None and self.process.alive:
            call = self._call
            self.process.node.run(self.fleet.loop.call_soon, call.cancel)

    @property
    def request(self) -> int | None:
        """The number by which its gateway knows the request now."""
        if self.process is None or self._spec is None or not self.process.alive:
            return None
        return self.fleet.request_of(self._spec, self.process.name)

    @property
    def waits(self) -> bool:
        """Whether its latest call has brought no token yet."""
        return self._spec is None or len(self.text.tokens) == len(self._spec.emitted)

    def stages(self) -> set[str]:
        """The phases in which workers have its request now."""
        request = self.request
        if request is None:
            return set()
        return {stage for worker in self.fleet.workers.values() for stage in worker.stages(request)}

    # ---- its life

    async def run(self) -> None:
        fleet, turn, pause = self.fleet, self.demand.gateway, BACK_OFF_SECONDS[0]
        process = await self._connected() if fleet.world.one_port else None
        self.began = fleet.loop.world
        while not self.ended:
            process = process or self._gateway(turn)
            if self.cancelled and not self.calls:
                break
            if process is not None and process.alive and await self._ask(process):
                break
            if self.cancelled or self.text.end is not End.NONE:
                break  # the client has its whole answer, though its gateway died before it said so
            turn, process = turn + 1, None
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACK_OFF_SECONDS[1])
        self.ended = True
        if self.error is None and not self.cancelled and self.text.end is End.NONE:
            self._wrong("ends too soon")

    async def _connected(self) -> GatewayProcess | None:
        """The gateway of a connection that the client has before it has the request."""
        if (process := self.fleet.port.connect()) is not None:
            process.calls.append(connection := GatewayCall(self))
            await asyncio.sleep(self.fleet.random.uniform(0, POOLED_SECONDS))
            process.calls.remove(connection)
        return process

    def _gateway(self, turn: int) -> GatewayProcess | None:
        world = self.fleet.world
        if world.one_port:
            return self.fleet.port.connect()
        return self.fleet.gateways[f"gateway{turn % world.gateways}"]

    async def _ask(self, process: GatewayProcess) -> bool:
        """One call. True: the request is over."""
        fleet, demand, call = self.fleet, self.demand, GatewayCall(self)
        left = None
        if demand.deadline_seconds is not None:
            left = demand.deadline_seconds - (fleet.loop.world - self.began)
            if left <= 0:
                fleet.coverage.reach("DEADLINE_EXCEEDED")
                self.error = DeadlineExceeded("before another gateway took it")
                return True
            fleet.loop.call_later(max(0.0, left - NOTICED_SECONDS), self._deadline_comes, process)
        spec = ChoiceRequest(
            self.name,
            "sim",
            demand.prompt,
            tuple(self.text.tokens),
            demand.sampling,
            left,
            demand.allow_class_change,
            self.numerics,
            salt=demand.salt,
            priority=demand.priority,
        )
        self.process, self._call, self._spec, self.accepted = process, call, spec, fleet.loop.world
        self.calls += 1
        process.calls.append(call)
        if fleet.world.one_port:
            fleet.network.later(lambda: self._arrives(process, spec, call))
        else:
            self._arrives(process, spec, call)
        try:
            return await self._read(process, call)
        finally:
            process.calls.remove(call)

    def _arrives(self, process: GatewayProcess, spec: ChoiceRequest, call: GatewayCall) -> None:
        if process.alive:
            call.arrived = True
            task = process.node.spawn(self._serve(process, spec, call))
            process.tasks = [each for each in process.tasks if not each.done()] + [task]

    async def _serve(self, process: GatewayProcess, spec: ChoiceRequest, call: GatewayCall) -> None:
        """The front door of the gateway, on its node."""
        try:
            refusing = process.core.draining
            call.stream = stream = process.core.submit(spec)
            if refusing:
                self._wrong(f"is accepted by {process.name}, which leaves")
            self.requests.update(r.id for r in process.core.sequencer.requests.values() if r.choice is spec)
            self.fleet.tenants.requests.update(dict.fromkeys(self.requests, self.demand.salt))
            if self.cancelled:
                stream.cancel()
            async for token in stream.events():
                check_class(spec, stream)
                call.send((token.position, token.token, stream.numerics))
                if call.sent == 1:
                    stream.shorten(partial(self._at_once, call, stream))
                await self.reads.wait()
        except BatonError as error:
            refusal = isinstance(error, Overloaded | Unavailable)
            if refusal and (why := refused(self.fleet, self, process, spec, error)):
                self._wrong(f"is refused with {error!r}: {why}")
            if call.stream is not None:
                call.stream.cancel()
            call.send(error)
        else:
            call.send(None)

    def _at_once(self, call: GatewayCall, stream: TokenStream, token: int) -> bool:
        """A token that leaves past the reader, as a front door sends plain tokens. It says nothing of its position."""
        if not self.reads.is_set():
            return False
        call.send((None, token, stream.numerics))
        return True

    async def _read(self, process: GatewayProcess, call: GatewayCall) -> bool:
        while True:
            match await call.inbox.get():
                case None:
                    return True
                case ConnectionError():
                    self._gone = "died"
                    return False
                case BatonError() as error:
                    return self._failed(process, error)
                case (position, token, numerics):
                    self._take(position, token, numerics)

    def _take(self, position: int | None, token: int, numerics: str) -> None:
        text, coverage = self.text, self.fleet.coverage
        if self._gone:
            paths = {
                "died": "a request continues at a gateway after its gateway died",
                "drained": "a request continues after a gateway has drained",
            }
            if self._gone in paths:
                coverage.reach(paths[self._gone])
            self._gone = ""
        if self.numerics and numerics != self.numerics:
            coverage.reach("a request continues in another numerics class")
            if not self.demand.allow_class_change:
                self._wrong(f"changes from {self.numerics} to {numerics}")
        self.numerics = numerics
        expected = text.next(numerics)
        if position not in (None, len(text.tokens)):
            self._wrong(f"gets position {position} and not {len(text.tokens)}")
        elif token != expected:
            self._wrong(f"gets token {token} and not {expected} at position {len(text.tokens)} from {numerics}")
        elif text.end is not End.NONE:
            self._wrong("gets a token behind its end")
        text.add(token)
        seconds, process = self.demand.deadline_seconds, self.process
        if seconds is None or self.stalled or process is None or self.fleet.troubled(process.name, self.began):
            return
        if self.fleet.loop.world > self.began + seconds * 1.03 + LATE_SECONDS:
            self._wrong(f"gets a token after its deadline of {seconds:.3f} s")

    def _failed(self, process: GatewayProcess, error: BatonError) -> bool:
        """True: the request is over."""
        fleet, coverage = self.fleet, self.fleet.coverage
        if (why := justified(fleet, self, process, error)) is not None:
            self._wrong(f"ends with {error!r}: {why}")
        if isinstance(
            error,
            WorkersDied | Unavailable | Overloaded | ClassUnavailable | PoolTooSmall | DeadlineExceeded | Cancelled,
        ):
            coverage.reach(error.reason)
        if isinstance(error, Unavailable | Overloaded | ClassUnavailable):
            self._gone = "drained" if "continue_with" in error.details else "refused"
            return False
        self.error = error
        return True

    def _deadline_comes(self, process: GatewayProcess) -> None:
        if self.process is process and not self.ended:
            for stage in self.stages():
                self.fleet.coverage.hit("deadline", stage)

    def _wrong(self, what: str) -> None:
        self.fleet.violate(f"{self.name} {what}")
