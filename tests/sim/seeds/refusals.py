"""Whether a gateway is right to refuse a request, judged at that moment from the simulated world and from the reports
that the gateway has. A gateway may refuse only by one of these rules:

OVERLOADED
  queue     the shortest wait by the workers' reports, times what experience teaches, is longer than `queue_seconds`
  deadline  that wait and the request's own time are longer than its deadline, and its own time alone is not
  late      a worker has given it back with Lost(late): nothing was computed within `start_seconds`
  In each case something must be there to wait for: a worker is busy, or the gateway cannot hear that it is not.

UNAVAILABLE
  draining     an operator has asked the gateway to leave, and no other process of it stays at their port
  cut off      the gateway leaves, and its time to do so is over
  max_waiting  so many requests wait for their first token
  no worker    no worker could be used for the last 10 s
  no pair      no worker of decode and, where decode may not prefill, of prefill could be used together, for the last
               10 s at the door or for the patience of a request that waited; of its class, if it has tokens
  no room      beside pages in quarantine the request fits into no pool of a decode worker that could be used

"Could be used" is the world's view, tests/sim/seeds/reach.py: the gateway's own view does not count."""

from collections.abc import Iterator
from math import inf
from typing import TYPE_CHECKING

from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from gateway.sequencing.admission_control import LATE_TIMES, MOST_WRONG
from gateway.sequencing.deadlines import SURE
from gateway.workers.attached import AttachedWorker
from mesh.errors import BatonError, Overloaded
from mesh.messages.jobs import Tier
from tests.sim.seeds import judge
from tests.sim.seeds.reach import ATTACHES_SECONDS

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import GatewayProcess, WorkerProcess
    from tests.sim.seeds.users import User

AT_THE_DOOR_SECONDS = 10.0  # without a worker, or a pair: then requests no longer wait
GUESSED_TOKENS_PER_SECOND = 2000.0  # speed of a worker that has measured nothing
CLOSE = 1e-6


def refused(fleet: "Fleet", user: "User", process: "GatewayProcess", spec: ChoiceRequest, error: BatonError) -> str:
    """Why the gateway may not refuse this request now; empty: it may."""
    if isinstance(error, Overloaded):
        return _overloaded(fleet, user, process, spec, error)
    message, gateway = error.message, process.core
    if "continue_with" in error.details:
        return (
            ""
            if process.leaves_at is not None and _clock(fleet, process) >= process.leaves_at - CLOSE
            else ("its gateway has time left to end it")
        )
    if "shuts down" in message:
        return _leaves(fleet, process)
    if "max_waiting" in message:
        return "" if gateway.sequencer.tally.waiting >= gateway.admission._max_waiting else "few requests wait"
    if "no worker had room" in message:
        return _room(fleet, user, process)
    waited = "this request waited" in message
    seconds = fleet.options.rules.patience_seconds if waited else AT_THE_DOOR_SECONDS
    any_worker = not waited and "cannot serve together" not in message
    return _usable(fleet, user, process, seconds / (1 + fleet.world.drift), any_worker=any_worker)


def _leaves(fleet: "Fleet", process: "GatewayProcess") -> str:
    if process.leaves_at is None:
        return "nobody has asked the gateway to leave"
    if fleet.world.one_port and _clock(fleet, process) < process.leaves_at - CLOSE and fleet.port.someone_stays():
        return "another process of the gateway takes its new connections"
    return ""


def _clock(fleet: "Fleet", process: "GatewayProcess") -> float:
    return process.node.clock(fleet.loop.world)


# ---- OVERLOADED


def _overloaded(fleet: "Fleet", user: "User", process: "GatewayProcess", spec: ChoiceRequest, error: Overloaded) -> str:
    now = fleet.loop.world
    if error.message.startswith("this request waited"):
        fault = _late(fleet, user, process, spec)
    else:
        fault = _by_reports(fleet, process, spec, error)
    if not fault and not judge.something_waits(fleet, user, process, error, now):
        fault = "no other request is there"
    return fault


def _late(fleet: "Fleet", user: "User", process: "GatewayProcess", spec: ChoiceRequest) -> str:
    """A worker gives back what it has not begun: at the limit of the gateway, or of the deadline."""
    if not any((process.name, request) in fleet.orders.given_back for request in user.requests):
        return "no worker has given it back as late"
    if spec.emitted or len(user.text.tokens) > len(spec.emitted):
        return "some of it is computed"
    limit = (
        LATE_TIMES * process.core.limits.queue_seconds + max(0, spec.priority) * fleet.options.rules.priority_seconds
    )
    waited = fleet.loop.world - user.accepted
    if spec.deadline_seconds is None and waited < limit * (1 - 2 * fleet.world.drift) - CLOSE:
        return f"a worker gave it back after {waited:.2f} s, and it may wait for {limit:.2f} s"
    return ""


def _by_reports(fleet: "Fleet", process: "GatewayProcess", spec: ChoiceRequest, error: Overloaded) -> str:
    gateway, estimate = process.core, shortest_wait(process)
    factor = gateway.admission._experience.factor
    if not 1 / MOST_WRONG <= factor <= MOST_WRONG:
        return f"experience teaches a factor of {factor}"
    wait, stated = estimate * factor, float(error.details["wait_seconds"])
    if "queue_seconds" in error.message:
        right, limit = wait, gateway.limits.queue_seconds
    elif spec.deadline_seconds is None:
        return "it has no deadline"
    else:
        limit, own = spec.deadline_seconds, _own_seconds(fleet, process, spec)
        right = wait + own
        if wait == 0.0:
            return f"by the reports nothing is before it, and its own time is {own:.2f} s"
    if right <= limit * (1 - CLOSE) or abs(right - stated) > 0.06 + CLOSE * right:
        return (
            f"the wait is stated as {stated:.1f} s; by the reports it is {right:.2f} s, and {limit:.2f} s are allowed"
        )
    return ""


def _own_seconds(fleet: "Fleet", process: "GatewayProcess", spec: ChoiceRequest) -> float:
    """The least time for the request itself: what no cache has of the prompt, and the answer at the pace of others."""
    gateway, fastest = process.core, max((_speed(each) for each in process.core.workers), default=inf)
    found = gateway.workers.table(spec.model).leading(spec.prompt, spec.salt, spec.hashes)
    lacking = max(0, len(spec.prompt) - max((each.tokens for each in found), default=0))
    return SURE * lacking / fastest + gateway.sequencer.paces.answer_seconds(spec, _clock(fleet, process))


def shortest_wait(process: "GatewayProcess") -> float:
    """By the last reports: until the prompts before a new request are computed and a place in a batch is left, on the
    shortest way."""
    local = process.core.sequencer.local
    workers = [each for each in process.core.workers if each.takes_requests]
    prefills = [each for each in workers if each.tier is Tier.PREFILL]
    waits = [wait for each in workers if each.tier is Tier.DECODE for wait in _ways(each, prefills, local)]
    wait = min(waits, default=0.0)
    return 0.0 if wait == inf else wait


def _ways(decode: AttachedWorker, prefills: list[AttachedWorker], local: Local) -> Iterator[float]:
    load = decode.load
    place = max(0, load.opened + decode.unreported_requests - load.free_places + 1) * load.place_seconds
    partners = [] if local is Local.ALWAYS else [each for each in prefills if each.numerics == decode.numerics]
    yield from (max(_prompts(each), place) for each in partners)
    if not partners and local is not Local.NEVER:
        yield max(_prompts(decode), place)
    elif not partners:
        yield inf
    elif local is Local.AUTO and load.local_tokens_per_second:
        yield max(_prompts(decode), place)


def _prompts(worker: AttachedWorker) -> float:
    tokens = worker.load.queued_tokens + worker.unreported_tokens
    return max(0, tokens - worker.behind_tokens) / _speed(worker)


def _speed(worker: AttachedWorker) -> float:
    return worker.load.local_tokens_per_second or worker.load.tokens_per_second or GUESSED_TOKENS_PER_SECOND


# ---- UNAVAILABLE


def _usable(fleet: "Fleet", user: "User", process: "GatewayProcess", seconds: float, *, any_worker: bool) -> str:
    """Names those that could be used for so long in the last seconds that the gateway should have used them."""
    workers = fleet.workers.values()
    for way in [[each] for each in workers] if any_worker else _ways_of(fleet, user):
        if (usable := fleet.reach.longest(process, way, seconds)) > ATTACHES_SECONDS:
            return f"{' and '.join(each.name for each in way)} could be used for {usable:.1f} s"
    return ""


def _room(fleet: "Fleet", user: "User", process: "GatewayProcess") -> str:
    needed, seconds = judge.pages_needed(user, fleet.world.decode_tokens), fleet.options.rules.patience_seconds
    for way in _ways_of(fleet, user):
        left = way[0].pages.pages - fleet.reach.quarantined(way[0], seconds)
        if fleet.reach.longest(process, way, seconds) > ATTACHES_SECONDS and needed <= left:
            return f"{way[0].name} has room for {needed} pages beside its quarantine"
    return ""


def _ways_of(fleet: "Fleet", user: "User") -> "list[list[WorkerProcess]]":
    """The decode workers that may go on with the tokens of this client, each with the prefill worker that it needs."""
    return fleet.ways(lambda each: _of_class(user, each))


def _of_class(user: "User", worker: "WorkerProcess") -> bool:
    free = user.demand.allow_class_change or not user.numerics
    return free or user.numerics.startswith(f"{worker.numerics} ")
