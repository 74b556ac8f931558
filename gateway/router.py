"""Step 2 of a request's life: one cost model picks a decode worker and a prefill worker, or *local*.

The router is pure: it reads what workers last reported and returns a route. A cost is the estimated number of seconds
until the first token: the prompt tokens queued before this prompt, its own tokens that no prefix cache holds, the pages
to ship, and the batch it joins. Only workers that fit are paired (gateway/fit.py). *Local* (decode prefills itself) is
for prompts of which decode lacks at most a page, and for a mesh without a usable prefill worker."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from gateway.fit import fits
from gateway.workers import AttachedWorker

GUESSED_TOKENS_PER_SECOND = 2000.0  # until a worker has measured itself
SHIP_PAGE_SECONDS = 0.0002
JOIN_BATCH_SECONDS = 0.002  # cost of one more request in a decode batch
NO_ROOM_SECONDS = 5.0  # cost of a decode worker without enough free pages
CANNOT_PUSH_SECONDS = 5.0  # cost of each failed push from this prefill worker to this decode worker
PREFERRED_SECONDS = 0.02  # a worker that the client's key went to before may cost so much more than another
CANNOT_PUSH_TIMES = 2  # failed pushes after which a request gives up a pair of workers

NONE_FAILED: Mapping[tuple[int, int], int] = {}
Cached = Callable[[AttachedWorker], int]  # number of prompt tokens that a worker's prefix cache holds


class Local(Enum):
    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Need:
    tokens: int  # tokens that must be in the pages before decode can go on
    numerics: str  # numerics class of the tokens that the client has; empty: any class


class RouteDecision(Enum):
    """Why a route is as it is."""

    REMOTE = "remote"  # a prefill worker computes the prompt
    LOCAL_CACHED = "local_cached"  # decode lacks at most a page of the prompt
    LOCAL_SETTING = "local_setting"  # the setting `local` wants it
    LOCAL_NO_PREFILL = "local_no_prefill"  # no usable prefill worker
    WAIT = "wait"  # no usable decode worker: the request waits


@dataclass(frozen=True, slots=True)
class Route:
    decode: AttachedWorker
    prefill: AttachedWorker | None  # None: local
    decision: RouteDecision
    cost_seconds: float = field(default=0.0, compare=False)
    candidates: int = field(default=1, compare=False)  # routes that it was chosen from


def route(
    need: Need,
    *,
    decodes: Sequence[AttachedWorker],
    prefills: Sequence[AttachedWorker],
    cached: Cached,
    local: Local = Local.AUTO,
    keep: int | None = None,
    last: int | None = None,
    first: int | None = None,
    refused: Collection[int] = (),
    failed: Mapping[tuple[int, int], int] = NONE_FAILED,
    preferred: Collection[int] = (),
) -> Route | None:
    """The cheapest route, or None. Workers are named by incarnation: `keep` is the decode worker to stay with, `last`
    and `first` are the prefill workers to take last and first, `failed` counts failed pushes of (prefill, decode),
    `preferred` are those that win where the others are hardly cheaper."""
    usable = [d for d in decodes if d.incarnation not in refused and need.numerics in ("", d.numerics)]
    able = [p for p in prefills if p.incarnation not in refused]

    def failures(prefill: AttachedWorker, decode: AttachedWorker) -> int:
        return failed.get((prefill.incarnation, decode.incarnation), 0)

    def partners_of(decode: AttachedWorker) -> list[AttachedWorker]:
        return [p for p in able if fits(p, decode) and failures(p, decode) < CANNOT_PUSH_TIMES]

    paired = [d for d in usable if partners_of(d)]
    if paired or local is Local.NEVER:
        usable = paired
    kept = [d for d in usable if d.incarnation == keep]
    if kept and (partners := partners_of(kept[0])) and all(failures(p, kept[0]) for p in partners):
        kept = []  # every prefill worker has failed to reach it: consider the other decode workers too
    routes = list[Route]()
    for decode in kept or usable:
        partners = partners_of(decode)
        if local is Local.ALWAYS or not partners:
            cost = decode_cost(need, decode, cached) + local_cost(need, decode, cached)
            why = RouteDecision.LOCAL_SETTING if local is Local.ALWAYS else RouteDecision.LOCAL_NO_PREFILL
            routes.append(Route(decode, None, why, cost))
            continue
        if local is Local.AUTO and need.tokens - cached(decode) <= decode.hello.page_tokens and last is None:
            routes.append(Route(decode, None, RouteDecision.LOCAL_CACHED, decode_cost(need, decode, cached)))
        chosen = [p for p in partners if p.incarnation == first] or [p for p in partners if p.incarnation != last]
        for prefill in chosen or partners:
            cost = decode_cost(need, decode, cached) + prefill_cost(need, prefill, decode, cached)
            cost += failures(prefill, decode) * CANNOT_PUSH_SECONDS
            routes.append(Route(decode, prefill, RouteDecision.REMOTE, cost))
    cheapest = min(routes, key=lambda each: each.cost_seconds - _advantage(each, preferred), default=None)
    return replace(cheapest, candidates=len(routes)) if cheapest is not None else None


def _advantage(route: Route, preferred: Collection[int]) -> float:
    workers = (route.decode, route.prefill) if preferred else ()
    return PREFERRED_SECONDS * sum(worker is not None and worker.incarnation in preferred for worker in workers)


def decode_cost(need: Need, decode: AttachedWorker, cached: Cached) -> float:
    requests = decode.load.running + decode.load.waiting + decode.unreported_requests
    pages = (need.tokens - cached(decode)) / decode.hello.page_tokens
    full = NO_ROOM_SECONDS if pages > decode.load.free_pages or decode.load.waiting else 0.0
    return requests * JOIN_BATCH_SECONDS + full


def local_cost(need: Need, decode: AttachedWorker, cached: Cached) -> float:
    queued = decode.load.queued_tokens + decode.unreported_tokens
    return (queued + need.tokens - cached(decode)) / tokens_per_second(decode)


def prefill_cost(need: Need, prefill: AttachedWorker, decode: AttachedWorker, cached: Cached) -> float:
    queued = prefill.load.queued_tokens + prefill.unreported_tokens
    compute = (queued + max(1, need.tokens - cached(prefill))) / tokens_per_second(prefill)
    missing_pages = max(0, need.tokens - cached(decode)) / decode.hello.page_tokens
    return compute + missing_pages * SHIP_PAGE_SECONDS


def tokens_per_second(worker: AttachedWorker) -> float:
    return worker.load.tokens_per_second or GUESSED_TOKENS_PER_SECOND
