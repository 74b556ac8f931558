"""The workers of one model as columns of numbers, so that the router compares a thousand of them in a few operations.

Step 2 of a request's life. Workers of one tier that fit the same others and take the same requests form a *group*; a
group has one column for each figure (gateway/workers/worker_figures.py). A worker's row is written when it reports or
gets a request, never while a route is chosen; groups are formed again when a worker has come or left."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gateway.routing.prefix_index import PrefixIndex
from gateway.workers.attached import UNWATCHED, AttachedWorker
from gateway.workers.pairs import fits, hosts_matter, kind_of
from gateway.workers.shared_cores import SharedCores
from gateway.workers.worker_figures import figures
from mesh.messages.hashing import next_hashes
from mesh.messages.jobs import Tier

Column = NDArray[np.float64]
Rows = NDArray[np.int64]
Hashes = dict[tuple[str, int], list[bytes]]  # hashes of a prompt's blocks, by numerics class and page size; some or all
NOT_HERE = -1
FEW = 8  # workers that numbers one by one find faster than a column does


class Cached(NamedTuple):
    """Workers whose prefix caches hold exactly `tokens` tokens of a prompt."""

    tokens: int
    workers: int  # bit i: the worker in slot i


class Hit(NamedTuple):
    """Workers of one group that lack exactly `lacking` tokens of a prompt: one row, or many."""

    lacking: int
    rows: int | Rows


class Lacking(NamedTuple):
    """The tokens of a prompt that the workers of a group lack."""

    most: int  # that most workers lack
    hits: list[Hit]  # the others
    least: int  # that the worker with most of it lacks
    largest: int

    def of(self, row: int) -> int:
        """The tokens that the worker of this row lacks."""
        for lacking, rows in self.hits:
            if rows == row if isinstance(rows, int) else row in rows:
                return lacking
        return self.most


class Shortest(NamedTuple):
    """The shortest waits at the workers of one group: at those that take requests; infinite: at none."""

    prompt: float  # until a worker has computed the prompts that it has
    place: float  # decode: until a worker has a place in its batch
    both: float  # decode: for both at one worker
    beside_prompt: float  # decode: as `prompt`, at a worker that takes prompts from prefill
    beside_both: float  # decode: as `both`, at such a worker


class Group:
    """Workers of one tier that fit the same others, one row each."""

    def __init__(self, workers: list[AttachedWorker], slots: Sequence[int], capacity: int) -> None:
        self.workers, hello = workers, workers[0].hello
        self.numerics, self.page_tokens = workers[0].numerics, hello.page_tokens
        self.pages = workers[0].pages  # that a number of tokens needs
        self.adjusts = hello.adjusts_logits  # they honour Sampling.adjustments
        self.row_of = {worker.incarnation: row for row, worker in enumerate(workers)}
        self.partners: list[Group] = []  # prefill groups that fit a decode group; empty for a prefill group
        self._columns: list[Column] = list(np.array([figures(worker) for worker in workers]).T.copy())
        (
            self.standing,
            self.queue,
            self.token,
            self.page,
            self.free,
            self.beside_queue,
            self.beside_token,
            self.place,
            self.ahead,
        ) = self._columns
        self._shortest: Shortest | None = None  # as of the last change, once computed
        self._at = np.full(capacity, NOT_HERE)
        self._at[slots] = range(len(workers))
        self._row_at, self._bits = self._at.tolist(), sum(1 << slot for slot in slots)
        self.least_page, self._least_free = float(self.page.min()), float(self.free.min())  # no worker's is smaller
        self.least_beside = float(self.beside_token.min())  # infinite: no decode worker takes prompts from prefill
        self.usable = sum(worker.takes_requests for worker in workers)

    def write(self, worker: AttachedWorker) -> None:
        row = self.row_of[worker.incarnation]
        new = figures(worker)
        self._shortest = None
        self.usable += int(new.queue < inf) - int(self.queue[row] < inf)
        for column, value in zip(self._columns, new, strict=True):
            column[row] = value
        self.least_page, self._least_free = min(self.least_page, new.page), min(self._least_free, new.free)
        self.least_beside = min(self.least_beside, new.beside_token)

    @property
    def shortest(self) -> Shortest:
        if self._shortest is None:
            ahead, place = self.ahead, self.place
            beside = np.where(np.isinf(self.beside_queue), inf, ahead)
            waits = ahead, place, np.maximum(ahead, place), beside, np.maximum(beside, place)
            self._shortest = Shortest(*(float(each.min()) for each in waits))
        return self._shortest

    def holds(self, pages: float) -> bool:
        """Has every worker at least `pages` free pages?"""
        if pages > self._least_free:
            self._least_free = float(self.free.min())
        return pages <= self._least_free

    def lacking(self, tokens: int, cached: Collection[Cached]) -> Lacking:
        """The tokens that each worker lacks of a prompt with `tokens` tokens."""
        levels, left = list[tuple[int, int]](), self._bits
        for held, workers in cached:
            if mine := workers & left:
                levels.append((max(0, tokens - held), mine))
                left ^= mine
        if left:
            levels.append((tokens, left))
        if len(levels) == 1:
            most = levels[0][0]
            return Lacking(most, [], most, most)
        sizes = [workers.bit_count() for _, workers in levels]
        most, _ = common = levels[sizes.index(max(sizes))]  # a system prompt may be everywhere
        found = list[Hit]()
        for level in levels:
            if level is common:
                continue
            lacking, workers = level
            if not workers & (workers - 1):
                found.append(Hit(lacking, self._row_at[workers.bit_length() - 1]))
            elif workers.bit_count() <= FEW:
                found += [Hit(lacking, self._row_at[slot]) for slot in slots_of(workers)]
            else:
                found.append(Hit(lacking, self._at[many_slots_of(workers)]))
        return Lacking(most, found, min(levels)[0], max(levels)[0])


class WorkerTable:
    """The observer of its workers."""

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}  # by incarnation; a slot is a bit of the index
        self._left: list[int] = []  # slots below the highest one that nobody has
        self._workers: dict[int, AttachedWorker] = {}
        self._cores = SharedCores()
        self._spaces = dict[tuple[str, int], int]()  # workers whose block hashes are comparable, as bits
        self._formed = True  # the groups are those of the workers that are here
        self._group_of: dict[int, Group] = {}  # by incarnation
        self._decodes: list[Group] = []
        self._prefills: list[Group] = []
        self.index = PrefixIndex()

    # ---- workers come, change and leave

    def add(self, worker: AttachedWorker) -> None:
        slot = self._left.pop() if self._left else len(self._slots)
        self._slots[worker.incarnation], self._workers[worker.incarnation] = slot, worker
        worker.observer, self._formed = self, False
        self._cores.add(worker)
        self.index.add(1 << slot, worker.prefix)

    def remove(self, worker: AttachedWorker) -> None:
        if self._workers.pop(worker.incarnation, None) is None:
            return
        worker.observer, self._formed = UNWATCHED, False
        self._cores.remove(worker)
        self._left.append(slot := self._slots.pop(worker.incarnation))
        self.index.remove(1 << slot, worker.prefix)

    def changed(self, worker: AttachedWorker) -> None:
        if self._formed:
            self._group_of[worker.incarnation].write(worker)
            for mate in self._cores.beside(worker):
                self._group_of[mate.incarnation].write(mate)

    def cached(self, worker: AttachedWorker, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        bit = 1 << self._slots[worker.incarnation]
        self.index.add(bit, added)
        self.index.remove(bit, removed)

    # ---- what the router reads

    @property
    def decodes(self) -> list[Group]:
        """Groups of decode workers; they name the groups of prefill workers that fit."""
        if not self._formed:
            self._form()
        return self._decodes

    @property
    def prefills(self) -> list[Group]:
        if not self._formed:
            self._form()
        return self._prefills

    def leading(self, prompt: Sequence[int], salt: bytes, hashes: Hashes) -> list[Cached]:
        """The workers that have some of this prompt. `hashes` keeps the block hashes that were computed."""
        found = list[Cached]()
        if not len(self.index):
            return found
        if not self._formed:
            self._form()
        for (numerics, page_tokens), members in self._spaces.items():
            known = hashes.setdefault((numerics, page_tokens), [])
            rest = next_hashes(prompt, page_tokens=page_tokens, numerics=numerics, salt=salt, known=known)
            for each in self.index.leading(self.index.held(known, rest)):
                if workers := each.workers & members:
                    found.append(Cached(each.blocks * page_tokens, workers))
        return found

    def _form(self) -> None:
        """Form the groups. They stay in the order in which workers came."""
        hosts = hosts_matter(self._workers.values())
        found, capacity = dict[object, list[AttachedWorker]](), max(self._slots.values(), default=0) + 1
        self._spaces.clear()
        for worker in self._workers.values():
            hello = worker.hello
            key = (
                worker.tier,
                kind_of(worker, hosts=hosts),
                hello.page_tokens,
                hello.window_tokens,
                hello.windowed_bands,
                hello.full_bands,
                hello.adjusts_logits,
            )
            found.setdefault(key, []).append(worker)
            space, bit = (hello.numerics, hello.page_tokens), 1 << self._slots[worker.incarnation]
            self._spaces[space] = self._spaces.get(space, 0) | bit
        groups = [Group(each, [self._slots[w.incarnation] for w in each], capacity) for each in found.values()]
        self._group_of = {worker.incarnation: group for group in groups for worker in group.workers}
        self._decodes = [group for group in groups if group.workers[0].tier is Tier.DECODE]
        self._prefills = prefills = [group for group in groups if group.workers[0].tier is Tier.PREFILL]
        for decode in self._decodes:
            decode.partners = [group for group in prefills if fits(group.workers[0], decode.workers[0])]
        self._formed = True


def slots_of(workers: int) -> Iterator[int]:
    """The slots of the bits that are set."""
    while workers:
        yield (slot := workers.bit_length() - 1)
        workers ^= 1 << slot


def many_slots_of(workers: int) -> Rows:
    """The same for many bits."""
    packed = np.frombuffer(workers.to_bytes((workers.bit_length() + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little").view(bool).nonzero()[0]
