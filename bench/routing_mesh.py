"""A simulated mesh in virtual time: the same requests over the router's routes, or over workers in turn.

Each prefill worker computes prompts one after the other, without the blocks that its cache holds, at a fixed speed.
Each decode worker gives each request a token per step, whose time grows with its batch; a prompt that it computes
itself goes at the speed that is left beside the batch. Caches forget the block that was used longest ago. Workers
report after every event, as the product's do. The time to the first token is all that is measured."""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, cycle

from bench.routing_trace import TraceRow
from bench.routing_world import MODEL, NUMERICS, bench_worker, best_route
from cli.load.plan import BLOCK_TOKENS
from gateway.routing.registry import Workers
from gateway.workers.attached import AttachedWorker
from mesh.messages.jobs import Tier
from mesh.messages.reports import Load, PrefixChange

PREFILLS, DECODES = 4, 4
PREFILL_SPEED = 8000.0  # prompt tokens per second
DECODE_STEP_SECONDS, DECODE_ROW_SECONDS = 0.02, 0.0005
LOCAL_SHARE = 0.25  # share of prefill's speed that a decode worker has left for prompts beside its batch
PAGE_SECONDS = 0.002  # time that a block is on its way
CACHE_BLOCKS = 2000  # blocks that each worker's cache holds


@dataclass(slots=True)
class SimulatedWorker:
    """A worker's queue, batch and cache."""

    attached: AttachedWorker
    speed: float  # with prompts, in tokens per second
    free_seconds: float = 0.0  # when it has computed all prompts that it has
    running: int = 0  # requests that decode here
    cache: "OrderedDict[bytes, None]" = field(default_factory=OrderedDict)
    sequence: int = 0

    def leading(self, blocks: Sequence[bytes]) -> int:
        return next((i for i, block in enumerate(blocks) if block not in self.cache), len(blocks))

    def keep(self, blocks: Iterable[bytes]) -> None:
        """The worker's cache holds these blocks now; the gateway hears of it."""
        blocks, gone = list(blocks), list[bytes]()
        added = tuple(block for block in blocks if block not in self.cache)
        for block in reversed(blocks):  # the first block is the one that is used latest: it leaves last
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > CACHE_BLOCKS:
            gone.append(self.cache.popitem(last=False)[0])
        self.sequence += 1
        self.attached.change(PrefixChange(self.sequence, added, tuple(gone)))

    def report(self, now: float) -> None:
        queued = round(max(0.0, self.free_seconds - now) * self.speed)
        decode = self.attached.tier is Tier.DECODE
        self.attached.report(
            Load(
                running=self.running,
                queued_tokens=queued,
                free_pages=1 << 20,
                total_pages=1 << 20,
                tokens_per_second=self.speed,
                free_places=1 << 10,
                page_seconds=0.0 if decode else PAGE_SECONDS,
                local_tokens_per_second=self.speed if decode else 0.0,
            )
        )


Chosen = tuple[AttachedWorker, AttachedWorker | None]
Chooser = Callable[[Workers, TraceRow], Chosen]


def routed(workers: Workers, request: TraceRow) -> Chosen:
    """The product's router."""
    chosen = best_route(workers.table(MODEL), request.tokens, {(NUMERICS, BLOCK_TOKENS): list(request.blocks)})
    return chosen.decode, chosen.prefill


def in_turn() -> Chooser:
    """Round robin: each prompt to the next prefill worker and the next decode worker."""
    turns: dict[Tier, cycle[AttachedWorker]] = {}

    def choose(workers: Workers, request: TraceRow) -> Chosen:
        if not turns:
            turns.update({tier: cycle(workers.tier(tier)) for tier in Tier})
        return next(turns[Tier.DECODE]), next(turns[Tier.PREFILL])

    return choose


class SimulatedRouting:
    def __init__(self, requests: Sequence[TraceRow], choose: Chooser, load: float) -> None:
        """`load`: prompt tokens that come, as a share of what the prefill workers compute without caches."""
        self._requests, self._choose, self._workers = requests, choose, Workers()
        self._sim: dict[int, SimulatedWorker] = {}
        for number in range(PREFILLS + DECODES):
            tier, speed = (
                (Tier.PREFILL, PREFILL_SPEED) if number < PREFILLS else (Tier.DECODE, LOCAL_SHARE * PREFILL_SPEED)
            )
            worker = bench_worker(tier, number + 1, page_tokens=BLOCK_TOKENS)
            self._workers.add(worker)
            self._sim[worker.incarnation] = SimulatedWorker(worker, speed)
            self._sim[worker.incarnation].report(0.0)
        span = max(1e-6, requests[-1].seconds - requests[0].seconds)
        needed = sum(request.tokens for request in requests) / (PREFILLS * PREFILL_SPEED)
        self._stretch = needed / load / span

    def run(self) -> list[float]:
        """The time to the first token of each request."""
        ends, order, firsts = list[tuple[float, int, SimulatedWorker]](), count(), list[float]()
        start = self._requests[0].seconds
        for request in self._requests:
            now = (request.seconds - start) * self._stretch
            while ends and ends[0][0] <= now:
                *_, worker = heapq.heappop(ends)
                worker.running -= 1
            for each in self._sim.values():
                each.report(now)
            decode, prefill = (self._sim[w.incarnation] if w else None for w in self._choose(self._workers, request))
            assert decode is not None
            first = self._compute(prefill or decode, request, now)
            shipped = len(request.blocks) - decode.leading(request.blocks) if prefill is not None else 0
            decode.keep(request.blocks)
            decode.running += 1
            each_seconds = DECODE_STEP_SECONDS + DECODE_ROW_SECONDS * decode.running
            end = first + shipped * PAGE_SECONDS + request.answer * each_seconds
            heapq.heappush(ends, (end, next(order), decode))
            firsts.append(first - now)
        return firsts

    def _compute(self, worker: SimulatedWorker, request: TraceRow, now: float) -> float:
        """The worker computes the prompt behind those that it has; returns when its first token is there."""
        lacking = max(1, request.tokens - worker.leading(request.blocks) * BLOCK_TOKENS)
        worker.free_seconds = max(worker.free_seconds, now) + lacking / worker.speed
        worker.keep(request.blocks)
        return worker.free_seconds
