"""A mesh of many workers with many cached blocks, as a gateway knows it: for the time of one decision."""

from random import Random
from typing import Any, cast

from gateway.routing.costs import Need
from gateway.routing.registry import Workers
from gateway.routing.router import Route, route
from gateway.routing.worker_table import WorkerTable
from gateway.workers.attached import AttachedWorker
from mesh.messages.hello_pairs import PageReach
from mesh.messages.jobs import Tier
from mesh.messages.page_shape import opaque_pages
from mesh.messages.reports import Hello, Load, PrefixChange

PAGE_TOKENS, MODEL, NUMERICS = 32, "m", "class"
SHAPE = opaque_pages((16, 1 << 16), content=MODEL, page_tokens=PAGE_TOKENS)
LONGEST_BLOCKS = 128  # bound on the blocks that a conversation adds, and on those that a request repeats
SYSTEM_BLOCKS = 16  # which half of the conversations share
REPORTS = 8  # workers that report between two decisions
POOL_PAGES = 4096
Hashes = dict[tuple[str, int], list[bytes]]


class SilentSession:
    """The way to a worker that is not there."""

    def send(self, message: object) -> None:
        pass


class RoutingWorld:
    def __init__(self, workers: int, blocks: int, random: Random) -> None:
        self._random, attached = random, Workers()
        self._system = [random.randbytes(16) for _ in range(SYSTEM_BLOCKS)]
        self._conversations: list[list[bytes]] = []
        self._workers = [bench_worker(Tier.DECODE if i % 2 else Tier.PREFILL, i + 1) for i in range(workers)]
        for worker in self._workers:
            attached.add(worker)
        self.table = attached.table(MODEL)
        for worker in self._workers:
            worker.change(PrefixChange(0, tuple(self._cache(blocks // workers)), snapshot=True))
            worker.report(self._load(worker.tier))

    def _cache(self, blocks: int) -> list[bytes]:
        """The blocks of one worker's cache: those of conversations."""
        found = list[bytes]()
        while len(found) < blocks:
            said = self._system if self._random.random() < 0.5 else []
            more = min(self._random.randrange(1, LONGEST_BLOCKS), blocks - len(found))
            said = [*said, *(self._random.randbytes(16) for _ in range(more))]
            self._conversations.append(said)
            found += said
        return found[-blocks:] if blocks else []

    def _load(self, tier: Tier) -> Load:
        random, decode = self._random, tier is Tier.DECODE
        return Load(
            running=random.randrange(48) if decode else 0,
            queued_tokens=0 if decode else random.randrange(20_000),
            free_pages=random.randrange(POOL_PAGES // 4, POOL_PAGES),
            total_pages=POOL_PAGES,
            tokens_per_second=float(f"{random.uniform(4000, 9000):.1e}"),
            free_places=random.randrange(1, 16) if decode else 0,
            place_seconds=0.1 if decode else 0.0,
            page_seconds=0.0 if decode else float(f"{random.uniform(1e-4, 1e-3):.1e}"),
            local_tokens_per_second=float(f"{random.uniform(500, 1500):.1e}") if decode else 0.0,
        )

    def request(self) -> tuple[int, Hashes]:
        """A conversation goes on, or a new one begins: the prompt's tokens, and the hashes up to the first unknown."""
        said = self._random.choice(self._conversations) if self._random.random() < 0.8 else []
        more = self._random.randrange(1, 32)
        hashes = [*said[: self._random.randrange(1, LONGEST_BLOCKS)], self._random.randbytes(16)]
        return (len(hashes) + more) * PAGE_TOKENS, {(NUMERICS, PAGE_TOKENS): hashes}

    def decide(self, tokens: int, hashes: Hashes) -> Route:
        return best_route(self.table, tokens, hashes)

    def sends(self, chosen: Route, tokens: int) -> None:
        """The request is counted where it goes, and some workers report."""
        chosen.decode.count(tokens if chosen.prefill is None else 0)
        if chosen.prefill is not None:
            chosen.prefill.count(tokens)
        for worker in self._random.sample(self._workers, min(REPORTS, len(self._workers))):
            worker.report(self._load(worker.tier))


def best_route(table: WorkerTable, tokens: int, hashes: Hashes) -> Route:
    """The product's choice for a prompt with these blocks."""
    chosen = route(Need(tokens, cached=table.leading((), b"", hashes)), table)
    assert chosen is not None
    return chosen


def bench_worker(
    tier: Tier, incarnation: int, *, page_tokens: int = PAGE_TOKENS, load: Load | None = None
) -> AttachedWorker:
    """A worker on a host of its own."""
    load, name = load or Load(free_pages=POOL_PAGES, total_pages=POOL_PAGES), f"{tier.value}-{incarnation}"
    pages = PageReach(f"host-{incarnation}", 1, SHAPE, ("shm", "tcp"))
    hello = Hello(
        tier,
        incarnation,
        name,
        NUMERICS,
        "print",
        MODEL,
        "hash",
        page_tokens,
        1 << 20,
        load,
        PrefixChange(0),
        name,
        pages=pages,
    )
    return AttachedWorker(hello, cast(Any, SilentSession()), load)
