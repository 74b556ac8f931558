"""Carries out the faults of a story: one small function for each kind. A fault with a phase waits a while for a request
in that phase."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import replace
from math import inf

from kvtransfer.memory import Write
from mesh.messages.jobs import Ticket
from tests.sim.seeds.fleet import Fleet
from tests.sim.seeds.processes import FleetProcess, GatewayProcess, WorkerProcess
from tests.sim.seeds.story import WRITE_FAULTS, SimFault
from tests.sim.seeds.users import User
from tests.sim.seeds.wires import WriteFault

WAIT_SECONDS = 6.0  # longest wait for a phase
SLOWNESS = 20.0
LONG_TOKENS = 20
RESTART_SECONDS = 0.3


class Strikes:
    def __init__(self, fleet: Fleet, users: list[User]) -> None:
        self._fleet, self._users, self._loop = fleet, users, fleet.loop
        self._waiting: list[tuple[SimFault, float]] = []  # with the time at which it strikes anyway
        self._over = False
        fleet.looked = self._look
        fleet.fabric.spoiled = self._spoiled
        self._kinds: dict[str, Callable[[SimFault], None]] = {
            "kill": self._kill,
            "freeze": self._freeze,
            "replace": self._replace,
            "drain": self._drain,
            "slow": self._slow,
            "hang": self._hang,
            "stand still": self._stand_still,
            "stand still gateway": self._stand_still,
            "copy": self._copy,
            "kill gateway": self._kill,
            "freeze gateway": self._freeze,
            "drain gateway": self._drain,
            "odd job": self._odd_job,
            "snap": self._snap,
            "cut": self._cut,
            "deafen": self._cut,
            "cancel": self._cancel,
            "stall": self._stall,
            **dict.fromkeys(WRITE_FAULTS, self._spoil),
        }

    def begin(self, fault: SimFault) -> None:
        """The time of a fault has come."""
        if not fault.phase:
            self._strike(fault)
            return
        self._waiting.append((fault, self._loop.world + WAIT_SECONDS))
        self._loop.call_later(WAIT_SECONDS, self._give_up)

    def end(self) -> None:
        """No fault strikes any more."""
        self._over = True
        self._waiting.clear()
        self._fleet.fabric.faults.clear()
        self._fleet.orders.odd_left = 0

    def _give_up(self) -> None:
        late = [fault for fault, until in self._waiting if until <= self._loop.world + 1e-6]
        self._waiting = [each for each in self._waiting if each[0] not in late]
        for fault in late:
            self._strike(fault)

    def _look(self, name: str) -> None:
        """A process has done something: a fault may have waited for it."""
        for entry in self._waiting:
            fault = entry[0]
            if fault.target == name or not fault.target:
                process = self._fleet.process(name)
                if isinstance(process, WorkerProcess | GatewayProcess) and fault.phase in process.stages():
                    self._waiting.remove(entry)
                    self._loop.call_soon(self._strike, fault, context=Context())
                    return

    def _strike(self, fault: SimFault) -> None:
        if not self._over:
            self._kinds[fault.kind](fault)

    def _hit(self, kind: str, *names: str) -> None:
        """Count the phases of the requests at these processes."""
        found = set[str]()
        for name in names:
            process = self._fleet.process(name)
            if isinstance(process, WorkerProcess | GatewayProcess):
                found |= process.stages()
        for phase in found or {"idle"}:
            self._fleet.coverage.hit(kind, phase)

    # ---- processes

    def _target(self, fault: SimFault) -> FleetProcess | None:
        process = self._fleet.process(fault.target)
        return process if process.runs else None

    def _kill(self, fault: SimFault) -> None:
        process = self._fleet.process(fault.target)
        if process.alive and not process.stands_still:
            self._hit(fault.kind, fault.target)
            self._fleet.trouble(fault.target, fault.kind, fault.seconds)
            self._fleet.kill(process)
            self._fleet.later(self._fleet.restart(fault.target, fault.seconds))

    def _freeze(self, fault: SimFault) -> None:
        if (process := self._target(fault)) is None:
            return
        self._hit(fault.kind, fault.target)
        self._fleet.trouble(fault.target, fault.kind, fault.seconds)
        process.freeze(self._loop.world)
        process.stands_still = fault.lasting
        if not fault.lasting:
            self._loop.call_later(fault.seconds, self._thaw, process)

    def _thaw(self, process: FleetProcess) -> None:
        if process.alive:
            process.thaw(self._loop.world)

    def _stand_still(self, fault: SimFault) -> None:
        self._freeze(replace(fault, seconds=inf))

    def _replace(self, fault: SimFault) -> None:
        if (process := self._target(fault)) is None:
            return
        self._hit(fault.kind, fault.target)
        self._fleet.trouble(fault.target, fault.kind, RESTART_SECONDS)
        self._fleet.replace(process)
        self._fleet.later(self._start_another(fault.target))
        self._loop.call_later(fault.seconds, self._thaw, process)
        self._loop.call_later(fault.seconds + 2.0, self._fleet.kill, process)

    async def _start_another(self, name: str) -> None:
        await asyncio.sleep(RESTART_SECONDS)
        await self._fleet.begin(name)

    def _drain(self, fault: SimFault) -> None:
        process = self._target(fault)
        if process is not None and not process.leaving:
            self._hit(fault.kind, fault.target)
            self._fleet.trouble(fault.target, fault.kind, fault.seconds + 10 * RESTART_SECONDS)
            self._fleet.later(self._fleet.departures.leave(process, fault.seconds))

    def _slow(self, fault: SimFault) -> None:
        process = self._target(fault)
        if isinstance(process, WorkerProcess):
            self._hit(fault.kind, fault.target)
            self._fleet.trouble(fault.target, fault.kind, fault.seconds)
            process.runner.slowness = SLOWNESS
            self._loop.call_later(fault.seconds, setattr, process.runner, "slowness", 1.0)

    def _hang(self, fault: SimFault) -> None:
        process = self._target(fault)
        if isinstance(process, WorkerProcess) and process.runner.hangs is None:
            self._hit(fault.kind, fault.target)
            self._fleet.trouble(fault.target, fault.kind, fault.seconds)
            process.runner.hangs, process.hangs_for_ever = asyncio.Event(), fault.lasting
            if not fault.lasting:
                self._loop.call_later(fault.seconds, self._unhang, process, process.runner.hangs)

    def _unhang(self, process: WorkerProcess, hangs: asyncio.Event) -> None:
        hangs.set()
        if process.runner.hangs is hangs:
            process.runner.hangs = None

    def _copy(self, fault: SimFault) -> None:
        process = self._target(fault)
        if isinstance(process, WorkerProcess) and not process.replaced and not self._fleet.copies.of(process):
            self._hit(fault.kind, fault.target)
            self._fleet.later(self._fleet.copies.live(process, fault.seconds))

    def _odd_job(self, fault: SimFault) -> None:
        self._fleet.orders.odd_left += fault.pick

    # ---- ways

    def _snap(self, fault: SimFault) -> None:
        self._hit(fault.kind, fault.target, fault.other)
        self._fleet.snap(fault.target, fault.other)

    def _cut(self, fault: SimFault) -> None:
        """ "cut": nothing arrives either way; "deafen": the target hears nothing of the other."""
        fleet, ways = self._fleet, [(fault.other, fault.target)]
        if fault.kind == "cut":
            ways.append((fault.target, fault.other))
        self._hit(fault.kind, fault.target, fault.other)
        for name in (fault.target, fault.other):
            fleet.trouble(name, fault.kind, fault.seconds)
        for way in ways:
            fleet.network.cut(*way)
        if fault.lasting:
            fleet.lasting_cuts.update(ways)
        release = None if fleet.world.one_sided else fleet.fabric.hold(lambda write: self._between(write, ways))

        def mend() -> None:
            for way in ways:
                fleet.network.mend(*way)
            if release is not None:
                release()

        if fault.seconds < inf:
            self._loop.call_later(fault.seconds, mend)

    def _between(self, write: Write, ways: list[tuple[str, str]]) -> bool:
        """Whether these frames travel one of these ways."""
        names = [p.name for p in self._fleet.all if isinstance(p, WorkerProcess) and p.incarnation == write.writer]
        names += [w.name for w in self._fleet.workers.values() if w.pool is write.target.pool]
        return tuple(names) in ways

    # ---- writes

    def _spoil(self, fault: SimFault) -> None:
        self._fleet.fabric.faults.extend([WriteFault(fault.kind, fault.seconds)] * fault.pick)

    def _spoiled(self, fault: WriteFault, write: Write) -> None:
        self._fleet.nets.spoiled(fault)
        request = Ticket.unpack(write.ticket).request
        for process in self._fleet.workers.values():
            if process.incarnation == write.writer:
                for stage in process.stages(request):
                    self._fleet.coverage.hit(fault.kind, stage)

    # ---- clients

    def _user(self, fault: SimFault) -> User | None:
        users = [user for user in self._users if user.calls and not user.ended and not user.cancelled]
        if fault.kind == "stall":  # only a long answer can be more than a gateway holds
            users = [user for user in users if user.demand.sampling.max_tokens > LONG_TOKENS] or users
        if fault.phase:
            users = [user for user in users if fault.phase in user.stages()] or users
        return users[fault.pick % len(users)] if users else None

    def _cancel(self, fault: SimFault) -> None:
        if (user := self._user(fault)) is not None:
            for stage in user.stages():
                self._fleet.coverage.hit(fault.kind, stage)
            user.cancel()

    def _stall(self, fault: SimFault) -> None:
        if (user := self._user(fault)) is not None:
            for stage in user.stages():
                self._fleet.coverage.hit(fault.kind, stage)
            user.stalled = True
            user.reads.clear()
            self._loop.call_later(fault.seconds, self._read_on, user)

    def _read_on(self, user: User) -> None:
        request, process = user.request, user.process
        if request is not None and process is not None and "paused" in process.stages(request):
            self._fleet.coverage.reach("a reader is behind and its request pauses")
        user.reads.set()
