"""Pages that change their tenant, with real workers: no bytes of the last tenant's keys and values are left in them,
not behind the end of a prompt either, and none travel from tier to tier."""

from typing import Any

import numpy as np
import pytest

from engine.pool.pages import PagePool
from gateway.routing.router import Local

pytestmark = pytest.mark.mesh

PAGE = 16
ALICE, BOB = tuple(range(2, 2 + 5 * PAGE + 9)), tuple(range(120, 120 + PAGE + 3))
WORD_BYTES = 16  # length of a run of bytes in keys and values that different tokens do not share by chance
WAYS = [("shm", True), ("tcp", True), ("shm", False)]  # transport, and whether there is a prefill worker


def words_of(data: memoryview) -> set[bytes]:
    found = np.unique(np.frombuffer(data, f"V{WORD_BYTES}")).tolist()
    return set(found) - {bytes(WORD_BYTES)}


def pages_of(worker: Any, pages: tuple[int, ...]) -> set[bytes]:
    return set().union(*(words_of(worker.pool.view(page, 0, worker.pool.shape.layers)) for page in pages))


async def left_of_alice(real_mesh: Any, transport: str, prefills: bool) -> tuple[int, int]:
    """How many words of the first tenant's pages stand in those of the second, and how many pages were cleared."""
    async with real_mesh(local=Local.NEVER if prefills else Local.ALWAYS) as mesh:
        for tier in ("prefill", "decode") if prefills else ("decode",):
            await mesh.add(tier, page_tokens=PAGE, pool_pages=8, prefix_cache=False, transports=(transport,))
        workers = (*mesh.prefills, *mesh.decodes)
        await mesh.ask(ALICE, max_tokens=3, salt=b"alice").task
        await mesh.until(lambda: all(worker.pages.available == 8 for worker in workers))
        hers = set[bytes]().union(*(pages_of(worker, tuple(range(8))) for worker in workers))
        assert len(hers) > 100
        await mesh.ask(BOB, max_tokens=3, salt=b"bob").task
        his = set[bytes]().union(*(pages_of(each, each.plans[-1].pieces[-1].pages) for each in workers))
        assert len(his) > 100
        return len(hers & his), sum(worker.counts()["cleared"] for worker in workers)


@pytest.mark.parametrize(("transport", "prefills"), WAYS)
async def test_a_tenants_pages_hold_nothing_of_the_tenant_before(
    real_mesh: Any, transport: str, prefills: bool
) -> None:
    left, cleared = await left_of_alice(real_mesh, transport, prefills)
    assert left == 0 and cleared > 0


@pytest.mark.parametrize(("transport", "prefills"), WAYS)
async def test_negative_control_without_clearing_they_do(
    real_mesh: Any, transport: str, prefills: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PagePool, "_hand_over", lambda pool, pages, salt: None)
    left, cleared = await left_of_alice(real_mesh, transport, prefills)
    assert left > 100 and cleared == 0
