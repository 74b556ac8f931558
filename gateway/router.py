"""Step 2 of a request's life: one cost model picks a decode worker and a prefill worker, or *local*.

Pure: it reads what workers last reported and returns a route. Costs are estimated seconds until the first token: the
prompt tokens queued before this one, those of its own that no prefix cache holds, the pages to ship, and the batch it
joins. Only equal numerics classes are paired, and *local* (decode prefills itself) is for prompts of which decode lacks
at most a page, or for a mesh without a usable prefill worker."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from gateway.workers import AttachedWorker

GUESSED_TOKENS_PER_SECOND = 2000.0  # until a worker has measured itself
SHIP_PAGE_SECONDS = 0.0002
JOIN_BATCH_SECONDS = 0.002  # one more request in a decode batch
NO_ROOM_SECONDS = 5.0  # decode has not the free pages now
CANNOT_PUSH_SECONDS = 5.0  # per time that this prefill worker could not push to this decode worker
CANNOT_PUSH_TIMES = 2  # so often a request tries a pair of workers

NONE_FAILED: Mapping[tuple[int, int], int] = {}
Matched = Callable[[AttachedWorker], int]  # prompt tokens that a worker's prefix cache holds


class Local(Enum):
    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Need:
    tokens: int  # to be in the pages before decode can go on
    numerics: str  # the class the client's tokens came from; empty: any


@dataclass(frozen=True, slots=True)
class Route:
    decode: AttachedWorker
    prefill: AttachedWorker | None  # None: local


def route(
    need: Need,
    *,
    decodes: Sequence[AttachedWorker],
    prefills: Sequence[AttachedWorker],
    matched: Matched,
    local: Local = Local.AUTO,
    keep: int | None = None,
    last: int | None = None,
    first: int | None = None,
    refused: Collection[int] = (),
    failed: Mapping[tuple[int, int], int] = NONE_FAILED,
) -> Route | None:
    """`keep`: the decode worker to stay with; `last`, `first`: the prefill worker to take last or first; `failed`: how
    often a (prefill, decode) could not push."""
    usable = [d for d in decodes if d.incarnation not in refused and need.numerics in ("", d.numerics)]
    able = [p for p in prefills if p.incarnation not in refused]

    def tried(prefill: AttachedWorker, decode: AttachedWorker) -> int:
        return failed.get((prefill.incarnation, decode.incarnation), 0)

    def partners_of(decode: AttachedWorker) -> list[AttachedWorker]:
        return [p for p in able if p.numerics == decode.numerics and tried(p, decode) < CANNOT_PUSH_TIMES]

    paired = [d for d in usable if partners_of(d)]
    if paired or local is Local.NEVER:
        usable = paired
    kept = [d for d in usable if d.incarnation == keep]
    if kept and (known := partners_of(kept[0])) and all(tried(p, kept[0]) for p in known):
        kept = []  # no prefill worker has reached it yet: look at the others too
    routes = []
    for decode in kept or usable:
        partners = partners_of(decode)
        if local is Local.ALWAYS or not partners:
            routes.append((decode_cost(need, decode, matched) + local_cost(need, decode, matched), Route(decode, None)))
            continue
        if local is Local.AUTO and need.tokens - matched(decode) <= decode.hello.page_tokens and last is None:
            routes.append((decode_cost(need, decode, matched), Route(decode, None)))
        chosen = [p for p in partners if p.incarnation == first] or [p for p in partners if p.incarnation != last]
        for prefill in chosen or partners:
            cost = decode_cost(need, decode, matched) + prefill_cost(need, prefill, decode, matched)
            cost += tried(prefill, decode) * CANNOT_PUSH_SECONDS
            routes.append((cost, Route(decode, prefill)))
    return min(routes, key=lambda pair: pair[0])[1] if routes else None


def rate(worker: AttachedWorker) -> float:
    return worker.load.tokens_per_second or GUESSED_TOKENS_PER_SECOND


def prefill_cost(need: Need, prefill: AttachedWorker, decode: AttachedWorker, matched: Matched) -> float:
    queued = prefill.load.queued_tokens + prefill.unreported_tokens
    compute = (queued + max(1, need.tokens - matched(prefill))) / rate(prefill)
    lacking = max(0, need.tokens - matched(decode)) / decode.hello.page_tokens
    return compute + lacking * SHIP_PAGE_SECONDS


def local_cost(need: Need, decode: AttachedWorker, matched: Matched) -> float:
    return (decode.load.queued_tokens + decode.unreported_tokens + need.tokens - matched(decode)) / rate(decode)


def decode_cost(need: Need, decode: AttachedWorker, matched: Matched) -> float:
    requests = decode.load.running + decode.load.waiting + decode.unreported_requests
    pages = (need.tokens - matched(decode)) / decode.hello.page_tokens
    full = NO_ROOM_SECONDS if pages > decode.load.free_pages or decode.load.waiting else 0.0
    return requests * JOIN_BATCH_SECONDS + full
