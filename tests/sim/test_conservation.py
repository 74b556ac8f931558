"""No page is lost: after every pass of the event loop the pages of every worker add up, whatever happens to requests.

Pools are too small for the load: decode puts landings off, requests preempt each other and share pages. Clients
leave at any moment, deadlines pass, sessions break, workers are stopped and go on."""

import asyncio
from dataclasses import replace
from random import Random

import pytest

from decode_svc.speculation.speculation import DraftSource
from engine.pool.ledger import Holder, Ledger
from engine.pool.pages import PagePool, PageState
from gateway.core.interface import ChoiceRequest
from gateway.routing.router import Local
from mesh.messages.jobs import Pooling, Sampling
from mesh.messages.orders import Examination
from tests.sim.cluster import Cluster
from tests.sim.loop import VirtualLoop


class AuditedLoop(VirtualLoop):
    """Looks at every worker's ledger after each pass."""

    cluster: Cluster | None = None
    passes = 0

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def _jump(self, timeout: float | None = None) -> list[object]:
        if self.cluster is not None and not self.found:
            self.passes += 1
            for process in self.cluster.processes.values():
                if process.alive:
                    process.worker.ledger.check()
                    if process.worker.ledger.counts()["ledger_broken"]:
                        found = process.worker.ledger.violations()
                        self.found += [f"{process.name} at {self.time():.4f}: {each}" for each in found]
        return super()._jump(timeout)


async def overload(loop: AuditedLoop, seed: int, window: int = 0, full_layers: int = 0) -> list[str]:
    random = Random(seed)
    cluster = loop.cluster = Cluster(
        seed,
        one_sided=random.random() < 0.7,
        pages=random.choice((12, 16, 24)) * (1 + full_layers),
        prefill_pages=random.choice((12, 24)) * (1 + full_layers),
        local=random.choice((Local.AUTO, Local.AUTO, Local.NEVER, Local.ALWAYS)),
        chunk_tokens=random.choice((4, 8, 16)),
        max_batch=random.choice((3, 8)),
        cache=random.random() < 0.8,
        source=random.choice((DraftSource.OFF, DraftSource.LOOKUP, DraftSource.OFF if window else DraftSource.DRAFT)),
        ahead=random.random() < 0.4,
        patience_seconds=random.choice((1.0, 30.0)),
        window=window,
        full_layers=full_layers,
    )
    await cluster.start(random.randint(1, 2), random.randint(1, 2))
    texts = [tuple(random.randrange(40) for _ in range(random.randint(1, 24))) for _ in range(5)]
    for _ in range(60):
        sampling = Sampling(temperature=1.0, seed=random.getrandbits(30), max_tokens=random.randint(1, 18))
        deadline = random.choice((None, None, None, random.uniform(0.01, 1.0)))
        client = cluster.ask(random.choice(texts) + (random.randrange(40),) * random.randint(0, 5), sampling, deadline)
        client.may_fail = True  # there is too little room: some requests give up
        if random.random() < 0.3:
            asyncio.get_running_loop().call_later(random.uniform(0, 0.3), client.handle.cancel)
        if random.random() < 0.1:
            pooling = random.choice((None, Pooling.LAST))  # the model of the simulation knows these
            examined = cluster.gateway.examine(examination_of(client.spec, pooling))
            asyncio.get_running_loop().call_later(random.uniform(0, 0.3), examined.cancel)
        if random.random() < 0.08:
            disturb(cluster, random)
        await asyncio.sleep(random.expovariate(1 / 0.01))
    for name in cluster.processes:
        cluster.thaw(name)
    found = await cluster.finish()
    return [*loop.found, *found]


def examination_of(spec: ChoiceRequest, pooling: Pooling | None) -> ChoiceRequest:
    return replace(spec, examination=Examination(top=1, pooling=pooling))


def disturb(cluster: Cluster, random: Random) -> None:
    """A session breaks, or a prefill worker stands still for a while."""
    prefills = [name for name in cluster.processes if name.startswith("prefill")]
    decodes = [name for name in cluster.processes if name.startswith("decode")]
    name, other = random.choice(prefills), random.choice(decodes)
    match random.randrange(3):
        case 0:
            cluster.network.snap(name, other)
        case 1:
            cluster.network.snap("gateway", random.choice((name, other)))
        case 2:
            cluster.freeze(name)
            asyncio.get_running_loop().call_later(random.uniform(0.1, 7.0), cluster.thaw, name)


WINDOWS = [(0, 2), (1, 6), (2, 9), (3, 16)]


@pytest.mark.parametrize(
    ("seed", "window", "full_layers"),
    [*((seed, 0, 0) for seed in range(4)), *((*each, full) for full in (0, 1) for each in WINDOWS)],
)
def test_pages_add_up_after_every_event_under_overload(seed: int, window: int, full_layers: int) -> None:
    loop = AuditedLoop()
    try:
        assert loop.run_until_complete(overload(loop, seed, window, full_layers)) == [] and loop.passes > 1000
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_a_page_that_a_request_forgot_is_found_and_named(caplog: pytest.LogCaptureFixture) -> None:
    pool = PagePool(8)
    taken = pool.take(3, b"")
    assert taken is not None
    held = [Holder("running", taken[:2], request=7)]
    ledger = Ledger(pool, lambda: held)
    for _ in range(3):
        ledger.check()
    assert ledger.counts() == {"ledger_broken": 1, "cleared": 0}, "the same fault counts once"
    (record,) = caplog.records
    assert f"page {taken[2]} is in_use with 1 references, held by nobody" in record.message
    held.append(Holder("running", taken[2:], request=8))
    ledger.check()
    assert ledger.violations() == []
    held.append(Holder("running", (7,), request=9))
    ledger.check()
    assert ledger.counts() == {"ledger_broken": 2, "cleared": 0} and ledger.violations() == [
        "page 7 is free with 0 references, held by request 9, running"
    ]


@pytest.mark.parametrize("state", [PageState.LANDING, PageState.QUARANTINED])
def test_a_landing_or_quarantined_page_has_one_writer(state: PageState) -> None:
    pool = PagePool(4)
    pages = pool.land(2, "owner", b"")
    assert pages is not None
    if state is PageState.QUARANTINED:
        pool.quarantine(pages)
    for holders, sound in [((pages,), True), ((), False), ((pages, pages[:1]), False)]:
        ledger = Ledger(pool, lambda holders=holders: [Holder("a writer", each, state) for each in holders])  # type: ignore[misc]
        assert (ledger.violations() == []) is sound
        ledger.check()
        assert ledger.counts()["ledger_broken"] == (not sound)
