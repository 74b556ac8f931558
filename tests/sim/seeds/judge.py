"""Whether an error that a client gets is justified, by what the run knows and the product does not."""

from typing import TYPE_CHECKING

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
from tests.sim.workers import PAGE_TOKENS

if TYPE_CHECKING:
    from tests.sim.seeds.fleet import Fleet
    from tests.sim.seeds.processes import GatewayProcess
    from tests.sim.seeds.users import User

# True: WORKERS_DIED counts only processes that died alone while they computed the request.
COUNT_ONLY_DEATHS = True
PATIENCE_SECONDS = 30.0  # the gateway's, after which a request that no worker takes ends


def justified(fleet: "Fleet", user: "User", process: "GatewayProcess", error: BatonError) -> str | None:
    """Why the error is not justified; None: it is."""
    now = fleet.loop.world
    match error:
        case Cancelled():
            return None if user.cancelled else "the client has not cancelled"
        case DeadlineExceeded():
            return _deadline(fleet, user, now)
        case WorkersDied():
            return _deaths(fleet, user)
        case PoolTooSmall():
            return _pool(fleet, user)
        case ClassUnavailable():
            names = [w.name for w in fleet.workers.values() if w.name.startswith("decode")]
            mine = [n for n in names if user.numerics.startswith(f"{fleet.workers[n].numerics} ")]
            return None if _all_in_trouble(fleet, mine, now) else f"{', '.join(mine)} can serve its class"
        case Overloaded():
            return None if _busy(fleet) else "no other request is there"
        case Unavailable():
            return _unavailable(fleet, user, process, error, now)
    return "no run causes it"


def _deadline(fleet: "Fleet", user: "User", now: float) -> str | None:
    seconds = user.demand.deadline_seconds
    if seconds is None:
        return "the request has no deadline"
    early = user.began + seconds * (1 - 1.5 * fleet.world.drift) - 1e-6 - now
    if early > 0 and not user.text.tokens and _busy(fleet):
        return None  # it would come before the first token
    return f"its deadline comes in {early:.6f} s" if early > 0 else None


def _busy(fleet: "Fleet") -> bool:
    """Whether some gateway has a request."""
    return any(each.core.sequencer.requests for each in fleet.gateways.values())


def _deaths(fleet: "Fleet", user: "User") -> str | None:
    if not COUNT_ONLY_DEATHS:
        return None
    died = max((fleet.deaths_of(request) for request in user.requests), default=0)
    needed = fleet.options.rules.deaths
    return None if died >= needed else f"{died} workers died alone while they computed it, not {needed}"


def _pool(fleet: "Fleet", user: "User") -> str | None:
    pages = -(-(len(user.demand.prompt) + user.demand.sampling.max_tokens) // PAGE_TOKENS)
    largest = fleet.world.pages
    if fleet.world.local.value == "never":
        largest = min(largest, fleet.world.prefill_pages)
    return None if pages > largest else f"it needs {pages} pages, and pools have {largest}"


def _unavailable(fleet: "Fleet", user: "User", process: "GatewayProcess", error: BatonError, now: float) -> str | None:
    """A gateway may refuse for a while when it leaves, and when no worker, or none of a tier, can serve."""
    since = now - 1.1 * PATIENCE_SECONDS
    if fleet.troubled(process.name, since) or any(w.pages.counts().quarantined for w in fleet.workers.values()):
        return None
    tiers = ["decode", *(["prefill"] if fleet.world.local.value == "never" else [])]
    for tier in tiers:
        names = [w.name for w in fleet.workers.values() if w.name.startswith(tier)]
        if user.numerics:
            names = [n for n in names if user.numerics.startswith(f"{fleet.workers[n].numerics} ")]
        if _all_in_trouble(fleet, names, since):
            return None
    return "workers of all tiers can serve"


def _all_in_trouble(fleet: "Fleet", names: list[str], since: float) -> bool:
    return all(fleet.troubled(name, since) for name in names)
