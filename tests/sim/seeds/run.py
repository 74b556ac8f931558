"""Runs a story: load and faults, then quiet, then the question whether every request has ended well and every page is
back. The first violation ends the run."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from mesh.rules import RULES, Rules
from tests.sim.loop import Stuck
from tests.sim.message_logs import SimLogs
from tests.sim.seeds.coverage import Coverage
from tests.sim.seeds.fleet import Fleet
from tests.sim.seeds.judge import left_over, stale_landings, unasked_prompts, waits_for_stuck_pages
from tests.sim.seeds.nodes import NodeLoop, run_nodes
from tests.sim.seeds.story import Story
from tests.sim.seeds.strikes import Strikes
from tests.sim.seeds.users import User

ATTACH_SECONDS = 10.0
ENDS_SECONDS = 150.0  # so long after the last fault every request must have ended, unless
MOVES_SECONDS = 45.0  # ... a slow mesh with a long queue still works it off: one ends in each such time
FORGETS_SECONDS = 45.0  # and so long after that every page must be back
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class RunOutcome:
    violations: list[str]
    requests: int
    errors: int
    load_seconds: float
    hits: dict[str, Counter[str]] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)  # tokens by their way through a gateway
    log_hash: str = ""  # hash of the tokens, error and number of calls of each client, and of when the run ended


def run_story(story: Story, *, rules: Rules = RULES, logs: SimLogs | None = None) -> RunOutcome:
    """`logs`: the processes log their messages there."""
    coverage = Coverage()
    with _Problems() as problems:
        try:
            return run_nodes(
                lambda loop: _run(loop, story, rules, coverage, problems, logs), Random(story.world.seed + 9)
            )
        except Stuck as error:
            found = [f"stuck: {error}"]
            return RunOutcome(found, len(story.demands), 0, story.load_seconds, coverage.hits, coverage.reached)


async def _run(
    loop: NodeLoop, story: Story, rules: Rules, coverage: Coverage, problems: "_Problems", logs: SimLogs | None
) -> RunOutcome:
    fleet = Fleet(story.world, loop, rules, coverage, logs)
    users = [User(fleet, number, demand) for number, demand in enumerate(story.demands)]
    strikes, tasks = Strikes(fleet, users), list[asyncio.Task[None]]()
    await fleet.start()
    await asyncio.sleep(ATTACH_SECONDS)
    begin = loop.time()
    for user in users:
        loop.call_at(begin + user.demand.at, lambda user=user: tasks.append(asyncio.ensure_future(user.run())))
    for fault in story.faults:
        loop.call_at(begin + fault.at, strikes.begin, fault)
    watches = [asyncio.ensure_future(each) for each in (_watch(fleet), fleet.supervisor.run())]
    await _wait(fleet, story.load_seconds)
    strikes.end()
    if not fleet.violations:
        await fleet.heal()
        await until(fleet, lambda: sum(not user.ended for user in users), ENDS_SECONDS, moves=MOVES_SECONDS)
        left = [user for user in users if not user.ended and not waits_for_stuck_pages(fleet, user)]
        if fleet.violations:
            left = []  # the run has ended before their time was over
        found = [f"{user.name} never ends: {len(user.text.tokens)} tokens" for user in left]
        if not found and not fleet.violations:
            for user in users:
                if not user.ended:
                    user.cancel()
            await until(fleet, lambda: len(left_over(fleet)), FORGETS_SECONDS)
            found = left_over(fleet)
        for what in found:
            fleet.violate(what)
    for watch in watches:
        watch.cancel()
    for process in fleet.all:
        for task in process.tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                fleet.violate(f"{process.name}: a task died of {error!r}")
    for task in (*tasks, *fleet.works):
        if task.done() and not task.cancelled() and task.exception() is not None:
            task.result()
    for process in fleet.workers.values():
        if process.alive:
            coverage.counts(process.worker.counts())
    for gateway in fleet.gateways.values():
        if gateway.alive:
            coverage.relayed(gateway.core.sequencer.relay)
    if logs is not None:
        logs.over = True
    found = [*fleet.violations, *problems.found, *loop.errors]
    seen = repr([(user.text.tokens, repr(user.error), user.calls) for user in users]) + f"{loop.world:.9f}"
    errors = sum(user.error is not None for user in users)
    log_hash = hashlib.sha256(seen.encode()).hexdigest()[:16]
    return RunOutcome(
        found, len(users), errors, story.load_seconds, coverage.hits, coverage.reached, coverage.ways, log_hash
    )


async def _watch(fleet: Fleet) -> None:
    while not fleet.violations:
        await asyncio.sleep(POLL_SECONDS)
        fleet.reach.look()
        fleet.nets.look()
        for what in (*stale_landings(fleet), *unasked_prompts(fleet)):
            fleet.violate(what)


async def _wait(fleet: Fleet, seconds: float) -> None:
    """Let time pass, but not behind a violation."""
    try:
        await asyncio.wait_for(fleet.failed.wait(), seconds)
    except TimeoutError:
        pass


async def until(fleet: Fleet, left: Callable[[], int], seconds: float, *, moves: float = 0.0) -> None:
    """Wait until nothing is left, for `seconds`; then as long as something ends in every `moves` seconds."""
    end, before = fleet.loop.time() + seconds, left()
    while (now := left()) and not fleet.violations and fleet.loop.time() < end:
        if now < before:
            end, before = max(end, fleet.loop.time() + moves), now
        await asyncio.sleep(POLL_SECONDS)


class _Problems(logging.Handler):
    """Notes every exception that the product logs: no message of the product's own processes may cause one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")

    def __enter__(self) -> "_Problems":
        self._log = logging.getLogger("baton")
        self._before = self._log.level, self._log.propagate
        self._log.addHandler(self)
        self._log.setLevel(logging.ERROR)
        self._log.propagate = False
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.setLevel(self._before[0])
        self._log.propagate = self._before[1]
