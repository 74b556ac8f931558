"""The cheapest route, found without comparing all pairs of workers.

Step 2 of a request's life. A *stand* is decode workers of one group together with the prefill workers that each of
them may have. Besides what each worker costs by itself, a pair has one part of its own: the pages to ship times the
sender's time for a page. So of all decode workers that lack equally many pages only the cheapest can be in the cheapest
pair. Each such set is paired once, and left out where even the fastest sender could not make it the cheapest. The
result is exactly the cheapest pair: a test compares it with all pairs."""

from collections.abc import Collection, Iterator, Mapping
from math import inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from gateway.routing.costs import Need, beside_seconds, decode_seconds, own_seconds, prompt_seconds
from gateway.routing.worker_table import Column, Group, Lacking, WorkerTable
from gateway.workers.attached import AttachedWorker

CANNOT_PUSH_SECONDS = 5.0  # cost of each failed push from this prefill worker to this decode worker
PREFERRED_SECONDS = 0.02  # a worker that the client's key went to before may cost this much more than another
CANNOT_PUSH_TIMES = 2  # failed pushes after which a request gives up a pair of workers

Failed = Mapping[tuple[int, int], int]  # number of failed pushes, by incarnations of prefill and decode worker
NONE_FAILED: Failed = {}


class FoundRoute(NamedTuple):
    """The cheapest route of its kind, and what the columns say that it costs."""

    cost: float
    decode: AttachedWorker
    lacking: int  # tokens of the prompt that decode lacks
    prefill: AttachedWorker | None = None
    computed: int = 0  # tokens of the prompt that prefill lacks


class Partner(NamedTuple):
    """Prefill workers that a decode worker may have."""

    group: Group
    wait: Column  # time until each has computed the prompt; infinite: not to be chosen
    lacking: Lacking
    least: float  # smallest value in `wait`
    usable: int  # number of prefill workers that may be chosen

    @classmethod
    def of(cls, group: Group, wait: Column, lacking: Lacking, usable: int) -> "Partner | None":
        least = float(wait[wait.argmin()])
        return cls(group, wait, lacking, least, usable) if least < inf else None

    def changed(self, changes: Mapping[int, float]) -> "Partner | None":
        """The same with the seconds of `changes` more for some workers, by incarnation."""
        wait = self.wait.copy()
        add(wait, self.group, changes)
        return Partner.of(self.group, wait, self.lacking, int(np.count_nonzero(wait < inf)))

    def only(self, incarnation: int) -> "Partner | None":
        row = self.group.row_of.get(incarnation)
        if row is None:
            return None
        wait = np.full_like(self.wait, inf)
        wait[row] = self.wait[row]
        return Partner.of(self.group, wait, self.lacking, 1)


class Stand(NamedTuple):
    """Decode workers of one group, and the prefill workers that each of them may have."""

    group: Group
    base: Column  # what each decode worker costs, whoever computes the prompt; infinite: not to be chosen
    lacking: Lacking
    partners: list[Partner]
    usable: int  # number of decode workers that may be chosen

    def has(self, decode: int | None) -> bool:
        row = None if decode is None else self.group.row_of.get(decode)
        return row is not None and bool(self.base[row] < inf)

    def only(self, decode: int) -> "Stand":
        base, row = np.full_like(self.base, inf), self.group.row_of[decode]
        base[row] = self.base[row]
        return self._replace(base=base, usable=1)

    @property
    def pairs(self) -> int:
        return self.usable * sum(each.usable for each in self.partners)

    def remote(self) -> FoundRoute | None:
        """The cheapest pair."""
        sets = list[tuple[float, int, int, Partner]]()
        for lacking, row in self._cheapest():
            base = float(self.base[row])
            for each in self.partners:
                pages = each.group.pages(lacking)  # prefill's: its measured time is that of one of them
                sets.append((base + each.least + pages * each.group.least_page, lacking, row, each))
        best: FoundRoute | None = None
        if len(sets) > 1:
            sets.sort(key=itemgetter(0))
        for lower, lacking, row, (group, wait, lacks, *_) in sets:
            if best is not None and lower >= best.cost:
                break
            whole = group.page * group.pages(lacking)
            whole += wait
            prefill = int(whole.argmin())
            cost = float(self.base[row] + whole[prefill])
            if best is None or cost < best.cost:
                computed = lacks.of(prefill)
                best = FoundRoute(cost, self.group.workers[row], lacking, group.workers[prefill], computed)
        return best

    def local(self) -> FoundRoute | None:
        """The cheapest decode worker that computes the prompt itself, because it has to."""
        return self._found(self.base + own_seconds(self.group, self.lacking))

    def beside(self, below: float) -> FoundRoute | None:
        """The same where it takes the prompt from prefill; it may be missing where it costs more than `below`."""
        if max(1, self.lacking.least) * self.group.least_beside > below + PREFERRED_SECONDS:
            return None
        return self._found(self.base + beside_seconds(self.group, self.lacking))

    def nearly_cached(self) -> FoundRoute | None:
        """The cheapest of those that lack at most a page of the prompt."""
        page = self.group.page_tokens
        if self.lacking.least > page:
            return None
        short = [(float(self.base[row]), row, lacking) for lacking, row in self._cheapest() if lacking <= page]
        cost, row, lacking = min(short, default=(inf, 0, 0))
        return FoundRoute(cost, self.group.workers[row], lacking) if cost < inf else None

    def _found(self, cost: Column) -> FoundRoute | None:
        row = int(cost.argmin())
        found = FoundRoute(float(cost[row]), self.group.workers[row], self.lacking.of(row))
        return found if found.cost < inf else None

    def _cheapest(self) -> Iterator[tuple[int, int]]:
        """For each number of tokens that workers lack: the number, and the row of the cheapest worker with it."""
        hits = self.lacking.hits
        rest = self.base.copy() if hits else self.base
        for lacking, rows in hits:
            rest[rows] = inf
            row = rows if isinstance(rows, int) else int(rows[self.base[rows].argmin()])
            if self.base[row] < inf:
                yield lacking, row
        row = int(rest.argmin())
        if rest[row] < inf:
            yield self.lacking.most, row


def stands_of(
    need: Need, table: WorkerTable, refused: Collection[int], failed: Failed, preferred: Collection[int]
) -> list[Stand]:
    """Every usable decode worker, together with the prefill workers that are left for it."""
    able = [d for d in table.decodes if need.numerics in ("", d.numerics) and (d.adjusts or not need.adjusts)]
    waits, found = dict[Group, Partner | None](), list[Stand]()
    changes = dict[int, float]()
    if preferred or refused:
        changes = dict.fromkeys(preferred, -PREFERRED_SECONDS) | dict.fromkeys(refused, inf)
    for group in able:
        for other in group.partners:
            if other not in waits and (other.adjusts or not need.adjusts):
                lacking = other.lacking(need.tokens, need.cached)
                wait = prompt_seconds(other, lacking)
                if changes:
                    add(wait, other, changes)
                waits[other] = Partner.of(other, wait, lacking, _left(other, refused))
        lacking = group.lacking(need.tokens, need.cached)
        base = decode_seconds(group, lacking)
        if changes:
            add(base, group, changes)
        partners = [partner for each in group.partners if (partner := waits.get(each)) is not None]
        stand = Stand(group, base, lacking, partners, _left(group, refused))
        for decode in {decode for _, decode in failed} if failed else ():
            if stand.has(decode):  # failed pushes make other partners of its own
                more = {p: _failed_seconds(times) for (p, to), times in failed.items() if to == decode}
                left = [each for partner in stand.partners if (each := partner.changed(more)) is not None]
                found.append(stand.only(decode)._replace(partners=left))
                base[group.row_of[decode]] = inf
                stand = stand._replace(usable=stand.usable - 1)
        if stand.usable:
            found.append(stand)
    return found


def _left(group: Group, refused: Collection[int]) -> int:
    """How many workers of the group may be chosen."""
    if not refused:
        return group.usable
    rows = (group.row_of.get(incarnation) for incarnation in refused)
    return group.usable - sum(row is not None and bool(group.queue[row] < inf) for row in rows)


def _failed_seconds(times: int) -> float:
    return times * CANNOT_PUSH_SECONDS if times < CANNOT_PUSH_TIMES else inf


def out_of_reach(kept: Stand, keep: int, failed: Failed) -> bool:
    """Have all prefill workers that are left for this decode worker failed to reach it?"""
    left = [w for p in kept.partners for w, wait in zip(p.group.workers, p.wait, strict=True) if wait < inf]
    return bool(left) and all(failed.get((worker.incarnation, keep), 0) for worker in left)


def in_turn(stand: Stand, first: int | None, last: int | None) -> Stand:
    """The stand with its first prefill worker alone, or without the last one, where it has others."""
    for only, others in ((first, []), (last, [inf])):
        if only is not None:
            changed = [p.changed({only: inf}) if others else p.only(only) for p in stand.partners]
            if left := [each for each in changed if each is not None]:
                return stand._replace(partners=left)
    return stand


def add(column: Column, group: Group, changes: Mapping[int, float]) -> None:
    """More seconds for some workers, by incarnation."""
    for incarnation, seconds in changes.items():
        if (row := group.row_of.get(incarnation)) is not None:
            column[row] += seconds
