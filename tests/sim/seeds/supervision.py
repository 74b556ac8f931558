"""A supervisor of all processes, as `baton up` is one: it ends those that stand still as a whole. Workers whose step
never ends, end themselves. The product's own judges decide; a process that they overlook for too long is a violation.

Some worlds have no supervisor: there what stands still or hangs may do so for ever, and the mesh works around it."""

import asyncio
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from cli.local_mesh.signs_of_life import LOOK_SECONDS, SIGN_SECONDS, LifeJudge, SignsOfLife
from mesh.sessions import watchdog
from mesh.sessions.watchdog import Watchdog
from tests.sim.seeds.processes import FleetProcess, WorkerProcess

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet

RESTART_SECONDS = 0.3
REPLACED_SECONDS = 5.0  # so long after the lease a process that stands still has ended
HUNG_SECONDS = 3.0  # so long after its limit a worker whose step hangs has ended


class SimSigns(SignsOfLife):
    """The pipe of a simulated process, without a pipe."""

    def __init__(self) -> None:
        self.heard_seconds, self._written = None, False

    def came(self) -> bool:
        written, self._written = self._written, False
        return written

    async def give(self) -> None:
        while True:
            self._written = True
            await asyncio.sleep(SIGN_SECONDS)


class SimSupervisor:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet, self._judge = fleet, LifeJudge(fleet.loop.world)
        self._signs = dict[SignsOfLife, FleetProcess]()

    def began(self, process: FleetProcess) -> None:
        if not self._fleet.world.supervised:
            return
        signs = SimSigns()
        self._signs[signs] = process
        process.tasks.append(process.node.spawn(signs.give()))
        if isinstance(process, WorkerProcess):
            process.tasks.append(process.node.spawn(self._watch(process)))

    async def run(self) -> None:
        """Look at all processes, as long as the run lasts."""
        while self._fleet.world.supervised:
            await asyncio.sleep(LOOK_SECONDS)
            self._signs = {signs: each for signs, each in self._signs.items() if each.alive and not each.replaced}
            for signs in self._judge.look(self._fleet.loop.world, self._signs):
                self._fleet.coverage.reach("a process that stands still is ended")
                self._end(self._signs[signs])
            for process in self._signs.values():
                self._overlooked(process)

    async def _watch(self, process: WorkerProcess) -> None:
        """The watchdog of one worker. Its thread stands still with the process, and so does this task."""
        assert process.made is not None
        end = partial(self._fleet.loop.call_soon, self._hangs, process, context=Context())
        dog = Watchdog(process.made.steps, clock=asyncio.get_running_loop().time, end=lambda why: [end()].clear())
        while not dog.look():
            await asyncio.sleep(watchdog.LOOK_SECONDS)
            dog.loop_turns()

    def _hangs(self, process: WorkerProcess) -> None:
        self._fleet.coverage.reach("a worker whose step hangs ends itself")
        self._end(process)

    def _end(self, process: FleetProcess) -> None:
        if process.alive:
            self._fleet.kill(process)
            self._fleet.later(self._fleet.restart(process.name, RESTART_SECONDS))

    def _overlooked(self, process: FleetProcess) -> None:
        now, since = self._fleet.loop.world, process.frozen_since
        lease = self._fleet.options.rules.lease_seconds
        if since is not None and now - since > lease + REPLACED_SECONDS:
            self._fleet.violate(f"{process.name} stands still for {now - since:.1f} s, and nobody ends it")
        if isinstance(process, WorkerProcess) and process.runs and process.made is not None:
            steps = process.made.steps
            running, limit = process.node.run(lambda: (steps.running_seconds, steps.limit_seconds))
            if running > limit + HUNG_SECONDS + process.still_seconds(now - running, now):
                self._fleet.violate(f"{process.name} computes one step for {running:.1f} s, its limit is {limit:.1f} s")
