"""Whether an error that a client gets, or a wait, is justified by what the run knows and the product does not."""

from math import ceil
from typing import TYPE_CHECKING

from decode_svc.worker import DecodeWorker
from mesh.errors import (
    BatonError,
    Cancelled,
    ClassUnavailable,
    DeadlineExceeded,
    Internal,
    Overloaded,
    PoolTooSmall,
    Unavailable,
    WorkersDied,
)
from mesh.messages.jobs import Tier
from prefill_svc.prompts import PromptPhase
from prefill_svc.worker import PrefillWorker

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import GatewayProcess, WorkerProcess
    from tests.sim.seeds.users import User

WAITING = (PromptPhase.QUEUED, PromptPhase.ASKED)
SETTLED_SECONDS = 5.0  # after it was stopped, a worker may judge others so much later
REGISTERS_SECONDS = 2.0  # so long after its streams with a gateway broke, a worker is attached there again
UNASKED_LOOKS = 3  # looks in a row at which an idle prefill worker leaves a prompt alone that it could ask for


def justified(fleet: "Fleet", user: "User", process: "GatewayProcess", error: BatonError) -> str | None:
    """Why the error is not justified; None: it is."""
    now = fleet.loop.world
    match error:
        case Cancelled():
            return None if user.cancelled else "the client has not cancelled"
        case DeadlineExceeded():
            return _deadline(fleet, user, now)
        case Internal():
            odd = user.requests & fleet.orders.odd_requests
            return None if odd and "cannot be computed" in error.message else "every order for it was sound"
        case WorkersDied():
            return _deaths(fleet, user, process)
        case PoolTooSmall():
            return _pool(fleet, user)
        case ClassUnavailable():
            there = [w.name for w in _decodes(fleet, user) if not _snapped(fleet, w.name, process, now)]
            return None if _all_in_trouble(fleet, there, now) else f"{', '.join(there)} can serve its class"
        case Overloaded() | Unavailable():
            return None  # judged when the gateway refuses, see tests/sim/seeds/refusals.py
    return "no run causes it"


def stale_landings(fleet: "Fleet") -> list[str]:
    """Landings that decode should have given up, since neither a span nor Computing has come for too long. A decode
    worker that was stopped itself has time to look again."""
    found, rules = list[str](), fleet.options.rules
    for process in fleet.workers.values():
        stopped = [t for t in fleet.troubles if t.name == process.name and t.kind in ("freeze", "replace")]
        if not process.runs or any(t.ended + SETTLED_SECONDS > fleet.loop.world for t in stopped):
            continue
        worker, now = process.worker, process.node.clock(fleet.loop.world)
        for request in worker.requests.values() if isinstance(worker, DecodeWorker) else ():
            if (landing := request.landing) is not None:
                allowed = max(rules.progress_seconds, rules.progress_steps * landing.longest_step_ms / 1000)
                silent = now - landing.progress_seconds
                if silent > 1.25 * allowed + rules.progress_seconds:
                    found.append(f"{process.name}: a landing without progress for {silent:.1f} s is not given up")
    return found


def unasked_prompts(fleet: "Fleet") -> list[str]:
    """Prefill workers that do nothing though they could send Ready for a prompt, at each of several looks: what should
    have woken them has not. The prompt would wait until the worker gives it back as late, or for another message."""
    found = list[str]()
    for process in fleet.workers.values():
        worker = process.worker
        if isinstance(worker, PrefillWorker):
            process.unasked_looks = process.unasked_looks + 1 if process.runs and _could_ask(process, worker) else 0
            if process.unasked_looks == UNASKED_LOOKS:
                found.append(f"{process.name}: no Ready for a prompt though nothing is in its way")
    return found


def _could_ask(process: "WorkerProcess", worker: PrefillWorker) -> bool:
    """No step, landing or examination takes room or time, no answer is expected, and decode can be reached."""
    prompts = list(worker.prompts)
    if process.runner.computing or len(worker._examinations):
        return False
    if any(p.phase not in WAITING or not p.answer.over or not p.later.over for p in prompts):
        return False
    links = [(p, worker.links.get(p.decode_address)) for p in prompts if p.phase is PromptPhase.QUEUED]
    return any(link is not None and link.up and link.incarnation == p.decode_incarnation for p, link in links)


def waits_for_stuck_pages(fleet: "Fleet", user: "User") -> bool:
    """Whether the request needs more than each decode worker's pool has beside pages that no worker can release: their
    writer stays frozen, or cut off, and may not be killed. Each of these workers raises the alarm."""
    rooms = list[int]()
    for process in _decodes(fleet, user):
        if not process.worker.counts()["stuck"]:
            return False
        rooms.append(process.pages.pages - process.pages.quarantined(fleet.guard.beyond_reach))
    return bool(rooms) and pages_needed(user, fleet.world.decode_tokens) > max(rooms)


def _deadline(fleet: "Fleet", user: "User", now: float) -> str | None:
    seconds = user.demand.deadline_seconds
    if seconds is None:
        return "the request has no deadline"
    early = user.began + seconds * (1 - 1.5 * fleet.world.drift) - 1e-6 - now
    if early > 0 and user.waits and (_busy(fleet) or early < _own_seconds(fleet, user)):
        return None  # it would come before the end
    return f"its deadline comes in {early:.6f} s" if early > 0 else None


def _own_seconds(fleet: "Fleet", user: "User") -> float:
    """Time that the workers take for the whole prompt and what is left of the answer, alone and without drafts."""
    options, tokens = fleet.options, len(user.demand.prompt)
    steps = ceil(tokens / options.chunk_tokens) + user.demand.sampling.max_tokens - len(user.text.tokens)
    return steps * options.step_seconds + tokens * options.row_seconds


def _busy(fleet: "Fleet") -> bool:
    """Whether some gateway has a request, or some worker, as far as gateways can know by now: the last report of a
    worker takes a while to a gateway, and the error as long to the client."""
    gateways, latest = fleet.gateways.values(), fleet.loop.world - 2 * fleet.world.latency_seconds
    busy = any(process.busy or process.busy_seconds >= latest for process in fleet.workers.values())
    return busy or any(each.core.sequencer.requests for each in gateways)


def something_waits(fleet: "Fleet", user: "User", process: "GatewayProcess", error: Overloaded, now: float) -> bool:
    """Whether requests were before this one, as its gateway knew. It has its workers' last reports; one that gave the
    request back unbegun may have stood still itself."""
    workers = fleet.workers.values()
    if _busy(fleet) or any(_unheard(fleet, worker, process, now) for worker in workers):
        return True
    given_back = error.message.startswith("this request waited")
    return given_back and any(fleet.troubled(worker.name, user.accepted) for worker in workers)


def _unheard(fleet: "Fleet", worker: "WorkerProcess", gateway: "GatewayProcess", now: float) -> bool:
    """Whether this gateway believes that the worker has requests, and could not hear that they have ended."""
    way, latest = (worker.name, gateway.name), now - 2 * fleet.world.latency_seconds
    if way in fleet.network.cuts or worker.node.frozen:
        seen = [each for each in gateway.core.workers if each.hello.address == worker.name]  # it may be replaced since
        loads = [each.load for each in seen]
        unreported = any(each.unreported_requests for each in seen)
        return unreported or any(each.waiting or each.opened or each.queued_tokens for each in loads)
    ended = [each for each in fleet.troubles if latest <= each.ended <= now]
    mended = {each.name for each in ended if each.kind in ("cut", "deafen")}
    return mended.issuperset(way) or any(each.name == worker.name and each.kind == "freeze" for each in ended)


def left_over(fleet: "Fleet") -> list[str]:
    """Pages and requests that live processes still hold though no client waits."""
    found = []
    for process in fleet.workers.values():
        if process.runs and not process.hangs_for_ever:
            counts, worker = process.pages.counts(), process.worker
            if counts.in_use + counts.landing + counts.quarantined > process.pages.quarantined(
                fleet.guard.beyond_reach
            ):
                found.append(f"{process.name}: pages never come back: {counts}")
            left = len(worker.requests if isinstance(worker, DecodeWorker) else worker.prompts)
            if left:
                found.append(f"{process.name}: {left} requests are never forgotten: {sorted(process.stages())}")
    for gateway in fleet.gateways.values():
        if gateway.runs and gateway.core.sequencer.requests:
            found.append(f"{gateway.name} never forgets {len(gateway.core.sequencer.requests)} requests")
    return found


def _deaths(fleet: "Fleet", user: "User", process: "GatewayProcess") -> str | None:
    rules, found = fleet.options.rules, [fleet.deaths.of(request, process.name) for request in user.requests]
    alone, all_of_them = max((each[0] for each in found), default=0), max((each[1] for each in found), default=0)
    if alone >= rules.deaths or all_of_them >= rules.deaths_in_all:
        return None
    return f"{alone} workers died alone while they computed it, not {rules.deaths}"


def pages_needed(user: "User", page_tokens: int) -> int:
    return -(-(len(user.demand.prompt) + user.demand.sampling.max_tokens) // page_tokens)


def _decodes(fleet: "Fleet", user: "User") -> "list[WorkerProcess]":
    """The decode workers that may go on with its tokens."""
    found = [w for w in fleet.workers.values() if w.name.startswith("decode")]
    any_class = user.demand.allow_class_change or not user.numerics
    return [w for w in found if any_class or user.numerics.startswith(f"{w.numerics} ")]


def _pool(fleet: "Fleet", user: "User") -> str | None:
    sizes = {Tier.DECODE: fleet.world.decode_tokens}
    if fleet.world.local.value == "never":
        sizes[Tier.PREFILL] = fleet.world.prefill_tokens
    needs = {tier: (pages_needed(user, size), fleet.world.pool_pages(tier)) for tier, size in sizes.items()}
    if any(pages > has for pages, has in needs.values()):
        return None
    return "; ".join(
        f"it needs {pages} pages, and {tier.value} pools have {has}" for tier, (pages, has) in needs.items()
    )


def _snapped(fleet: "Fleet", worker: str, process: "GatewayProcess", now: float) -> bool:
    """Whether the worker may not be back at the gateway since their streams broke: for it that may be a death."""
    return any(
        (one, other) == (worker, process.name) and now - at < REGISTERS_SECONDS for at, one, other in fleet.snaps
    )


def _all_in_trouble(fleet: "Fleet", names: list[str], since: float) -> bool:
    return all(fleet.troubled(name, since) for name in names)
