"""The router's choice by comparing all pairs, one by one: slow and plain, for tests."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from gateway.routing.cheapest import CANNOT_PUSH_SECONDS, CANNOT_PUSH_TIMES, PREFERRED_SECONDS
from gateway.routing.costs import CostParts, parts_of
from gateway.routing.router import Local
from gateway.workers.attached import AttachedWorker
from gateway.workers.pairs import fits
from gateway.workers.worker_figures import ahead_wait, place_wait
from mesh.messages.jobs import Tier


@dataclass(frozen=True)
class AllPairs:
    tokens: int
    workers: list[AttachedWorker]
    cached: Mapping[int, int]  # tokens of the prompt, by incarnation
    numerics: str = ""
    adjusts: bool = False
    local: Local = Local.AUTO
    keep: int | None = None
    last: int | None = None
    first: int | None = None
    refused: frozenset[int] = frozenset()
    failed: Mapping[tuple[int, int], int] = field(default_factory=dict)
    preferred: frozenset[int] = frozenset()

    def best_seconds(self) -> float | None:
        """The least cost of any route; what a preference is worth counts."""
        return min((cost.seconds - self._worth(*pair) for pair, cost in self._routes()), default=None)

    def count(self) -> int:
        """How many routes there are, without those that decode takes from prefill."""
        remote = sum(pair[1] is not None for pair, _ in self._routes())
        return remote + sum(not self._partners(decode) or self.local is Local.ALWAYS for decode in self._decodes())

    def _worth(self, *pair: AttachedWorker | None) -> float:
        return PREFERRED_SECONDS * sum(one is not None and one.incarnation in self.preferred for one in pair)

    def _usable(self, tier: str) -> list[AttachedWorker]:
        able = [w for w in self.workers if w.takes_requests and w.incarnation not in self.refused]
        return [w for w in able if w.tier.value == tier and (w.hello.adjusts_logits or not self.adjusts)]

    def _times(self, prefill: AttachedWorker, decode: AttachedWorker) -> int:
        return self.failed.get((prefill.incarnation, decode.incarnation), 0)

    def _partners(self, decode: AttachedWorker) -> list[AttachedWorker]:
        left = [p for p in self._usable("prefill") if fits(p, decode)]
        return [p for p in left if self._times(p, decode) < CANNOT_PUSH_TIMES]

    def _decodes(self) -> list[AttachedWorker]:
        usable = [d for d in self._usable("decode") if self.numerics in ("", d.numerics)]
        paired = [d for d in usable if self._partners(d)]
        if paired or self.local is Local.NEVER:
            usable = paired
        kept = [d for d in usable if d.incarnation == self.keep]
        if kept and (partners := self._partners(kept[0])) and all(self._times(p, kept[0]) for p in partners):
            kept = []
        return kept or usable

    def _routes(self) -> Iterator[tuple[tuple[AttachedWorker, AttachedWorker | None], CostParts]]:
        for decode in self._decodes():
            lacking = max(0, self.tokens - self.cached.get(decode.incarnation, 0))
            partners = self._partners(decode)
            if self.local is Local.ALWAYS or not partners:
                yield (decode, None), parts_of(decode, None, lacking=lacking, computed=max(1, lacking))
                continue
            if self.local is Local.AUTO and self.last is None:
                if lacking <= decode.hello.page_tokens:
                    yield (decode, None), parts_of(decode, None, lacking=lacking, computed=0)
                if decode.load.local_tokens_per_second:
                    parts = parts_of(decode, None, lacking=lacking, computed=max(1, lacking), beside=True)
                    yield (decode, None), parts
            chosen = [p for p in partners if p.incarnation == self.first]
            chosen = chosen or [p for p in partners if p.incarnation != self.last] or partners
            for prefill in chosen:
                computed = max(1, self.tokens - self.cached.get(prefill.incarnation, 0))
                seconds = CANNOT_PUSH_SECONDS * self._times(prefill, decode)
                pair = decode, prefill
                yield pair, parts_of(decode, prefill, lacking=lacking, computed=computed, failed_seconds=seconds)


def shortest_wait(workers: list[AttachedWorker], local: Local, *, examined: bool) -> float:
    """How long a request would wait on the route with the shortest wait."""
    usable = [worker for worker in workers if worker.takes_requests]
    prefills = [worker for worker in usable if worker.tier is Tier.PREFILL]
    if examined and prefills:
        return min(map(ahead_wait, prefills))
    waits = list[float]()
    for decode in (worker for worker in usable if worker.tier is Tier.DECODE):
        prompt = min((ahead_wait(prefill) for prefill in prefills if fits(prefill, decode)), default=inf)
        if local is Local.ALWAYS or (prompt == inf and local is Local.AUTO):
            prompt = ahead_wait(decode)
        elif local is Local.AUTO and decode.load.local_tokens_per_second:
            prompt = min(prompt, ahead_wait(decode))
        waits.append(prompt if examined else max(prompt, place_wait(decode)))
    wait = min(waits, default=0.0)
    return 0.0 if wait == inf else wait
