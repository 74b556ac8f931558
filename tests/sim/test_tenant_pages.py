"""No page tells a tenant anything of another one: a page that changes its tenant is zero when a request gets it."""

import asyncio

import pytest

from engine.pool.pages import PagePool
from gateway.routing.router import Local
from kvtransfer.memory import Write
from mesh.messages.jobs import Sampling
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual
from tests.sim.tenants import TenantTexts

LONG, SHORT = tuple(range(22)), tuple(range(100, 105))  # prompts whose last page is not full
FEW = Sampling(max_tokens=3)


class WatchedCluster(Cluster):
    """Looks at every page that a request gets, and at all bytes that travel."""

    def __init__(self, local: Local, *, one_sided: bool) -> None:
        super().__init__(1, pages=7, one_sided=one_sided, local=local, cache=False)
        self.found = list[str]()
        self.tenants = TenantTexts(self.found.append)
        touched = self.fabric.touched

        def arrives(write: Write, page: int) -> None:
            touched(write, page)
            self.tenants.written("decode", write)

        self.fabric.touched = arrives

    async def ask_as(self, salt: bytes, prompt: tuple[int, ...]) -> None:
        self.tenants.add(salt, prompt, FEW, (0,), self.options.vocabulary)
        client = self.ask(prompt, FEW, salt=salt)
        found = next(r.id for r in self.gateway.sequencer.requests.values() if r.choice is client.spec)
        self.tenants.requests[found] = salt
        await self.until(lambda: client.ended)
        await asyncio.sleep(1)  # the pages are back


async def one_after_the_other(local: Local, salts: tuple[bytes, bytes], *, one_sided: bool) -> tuple[list[str], int]:
    """The text of others that the second tenant gets, in writes and in its pages, and how many pages were cleared."""
    cluster = await WatchedCluster(local, one_sided=one_sided).start(1, 1)
    await cluster.ask_as(salts[0], LONG)
    await cluster.ask_as(salts[1], SHORT)
    computed = [process for process in cluster.processes.values() if process.worker.plans]
    for process in computed:
        last = process.worker.plans[-1].pieces[0]
        cluster.tenants.handed(process.name, process.pool, last.pages, salts[1])
    assert len(computed) == (1 if local is Local.ALWAYS else 2)
    assert await cluster.finish(20) == []
    return cluster.found, sum(process.worker.pages.cleared for process in cluster.processes.values())


WAYS = [(Local.ALWAYS, True), (Local.NEVER, True), (Local.NEVER, False)]


@pytest.mark.parametrize(("local", "one_sided"), WAYS)
def test_a_page_of_another_tenant_is_cleared_before_it_is_handed_out(local: Local, one_sided: bool) -> None:
    found, cleared = run_virtual(one_after_the_other(local, (b"alice", b"bob"), one_sided=one_sided))
    assert found == [] and cleared > 0


@pytest.mark.parametrize(("local", "one_sided"), WAYS)
def test_negative_control_without_clearing_the_next_tenant_gets_text_of_the_last(
    local: Local, one_sided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PagePool, "_hand_over", lambda pool, pages, salt: None)
    found, _ = run_virtual(one_after_the_other(local, (b"alice", b"bob"), one_sided=one_sided))
    assert any("page" in what for what in found)
    assert any("a write" in what for what in found) == (local is Local.NEVER), "its partial page takes them to decode"


@pytest.mark.parametrize("salt", [b"", b"alice"])
def test_pages_that_stay_with_their_tenant_are_not_cleared(salt: bytes) -> None:
    assert run_virtual(one_after_the_other(Local.NEVER, (salt, salt), one_sided=True)) == ([], 0)
