"""Step 2 of a request's life: one cost model picks a decode worker and a prefill worker, or *local*.

The router is pure: it reads what workers last reported, as the columns of gateway/routing/worker_table.py, and returns
a route. This file says which routes a request may have, and gateway/routing/costs.py what each costs. Only workers that
fit are paired. *Local* (decode prefills itself) is for prompts of which decode lacks at most a page, for prompts that
it computes earlier beside its batch than a prefill worker with a queue, and for a mesh without a usable prefill worker.
docs/routing.md has the picture."""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from math import inf

from gateway.routing.cheapest import (
    CANNOT_PUSH_SECONDS,
    NONE_FAILED,
    Failed,
    FoundRoute,
    in_turn,
    out_of_reach,
    stands_of,
)
from gateway.routing.costs import CostParts, Need, parts_of
from gateway.routing.worker_table import WorkerTable
from gateway.workers.attached import AttachedWorker


class Local(Enum):
    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


class RouteDecision(Enum):
    """Why a route is as it is."""

    REMOTE = "remote"  # a prefill worker computes the prompt
    LOCAL_CACHED = "local_cached"  # decode lacks at most a page of the prompt
    LOCAL_FASTER = "local_faster"  # prefill workers have queues, and decode computes the prompt beside its batch
    LOCAL_SETTING = "local_setting"  # the setting `local` wants it
    LOCAL_NO_PREFILL = "local_no_prefill"  # no usable prefill worker
    WAIT = "wait"  # no usable decode worker: the request waits


@dataclass(frozen=True, slots=True)
class Route:
    decode: AttachedWorker
    prefill: AttachedWorker | None  # None: local
    decision: RouteDecision
    cost: CostParts = field(default=CostParts(), compare=False)
    candidates: int = field(default=1, compare=False)  # routes that it was chosen from
    cached: tuple[int, int] = field(default=(0, 0), compare=False)  # prompt tokens that decode has, and prefill


def route(
    need: Need,
    table: WorkerTable,
    *,
    local: Local = Local.AUTO,
    keep: int | None = None,
    last: int | None = None,
    first: int | None = None,
    refused: Collection[int] = (),
    failed: Failed = NONE_FAILED,
    preferred: Collection[int] = (),
) -> Route | None:
    """The cheapest route, or None. Workers are named by incarnation: `keep` is the decode worker to stay with, `last`
    and `first` are the prefill workers to take last and first, `failed` counts failed pushes of (prefill, decode),
    `preferred` are those that win where the others are hardly cheaper."""
    stands = stands_of(need, table, refused, failed, preferred)
    paired = [stand for stand in stands if stand.partners]
    if paired or local is Local.NEVER:
        stands = paired
    if keep is not None and (kept := next((stand for stand in stands if stand.has(keep)), None)) is not None:
        stands = stands if out_of_reach(kept, keep, failed) else [kept.only(keep)]
    found, candidates = list[tuple[FoundRoute, RouteDecision]](), 0
    for stand in stands:
        one: FoundRoute | None
        if local is Local.ALWAYS or not stand.partners:
            why = RouteDecision.LOCAL_SETTING if local is Local.ALWAYS else RouteDecision.LOCAL_NO_PREFILL
            routes, candidates = [(stand.local(), why)], candidates + stand.usable
        else:
            ordered = in_turn(stand, first, last)
            remote, candidates = ordered.remote(), candidates + ordered.pairs
            routes = [(remote, RouteDecision.REMOTE)]
            if local is Local.AUTO and last is None:
                routes.append((stand.nearly_cached(), RouteDecision.LOCAL_CACHED))
                routes.append((stand.beside(remote.cost if remote else inf), RouteDecision.LOCAL_FASTER))
        found += [(one, decision) for one, decision in routes if one is not None]
    if not found:
        return None
    one, decision = min(found, key=lambda each: each[0].cost)
    return _explained(need, one, decision, candidates, failed)


def _explained(need: Need, one: FoundRoute, decision: RouteDecision, candidates: int, failed: Failed) -> Route:
    _, decode, lacking, prefill, computed = one
    times = failed.get((prefill.incarnation, decode.incarnation), 0) if prefill is not None else 0
    own = 0 if decision is RouteDecision.LOCAL_CACHED else max(1, lacking)
    parts = parts_of(
        decode,
        prefill,
        lacking=lacking,
        computed=own if prefill is None else max(1, computed),
        beside=decision is RouteDecision.LOCAL_FASTER,
        failed_seconds=CANNOT_PUSH_SECONDS * times,
    )
    cached = need.tokens - lacking, need.tokens - computed if prefill is not None else 0
    return Route(decode, prefill, decision, parts, candidates, cached)
