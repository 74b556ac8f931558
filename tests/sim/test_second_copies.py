"""A span that decode asks for again though it is only late comes twice; its second copy harms no page that is valid."""

import asyncio

import pytest

from decode_svc.request.requests import OpenLanding
from tests.sim.cluster import Cluster
from tests.sim.loop import run_virtual

PROMPT = tuple(range(10))  # three pages


async def damaged_second_copy() -> list[str]:
    """Late frames complete the landing while a second copy, which is damaged, is half received."""
    cluster = await Cluster(1, one_sided=False).start(1, 1)
    hold = cluster.fabric.hold
    late, others = hold(lambda w: (w.round, w.span.index) == (0, 0)), hold(lambda w: w.round == 0 and w.span.index > 0)
    again, halves = hold(lambda w: w.round == 1), hold(lambda w: w.round == 1 and w.into is not None)
    cluster.ask(PROMPT)
    await asyncio.sleep(0.1)  # all frames of the first round are under way
    cluster.fabric.spoil = 1
    await cluster.until(lambda: any(write.round == 1 for write in cluster.fabric.waiting))
    for release in (late, again, others, halves):
        release()
        await asyncio.sleep(0.02)
    return await cluster.finish(20)


def test_a_second_copy_never_changes_a_page_that_is_valid() -> None:
    assert run_virtual(damaged_second_copy()) == []


def test_negative_control_without_the_guard_decode_reads_the_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OpenLanding, "frame_begins", lambda *frame: True)
    assert "differs" in "".join(run_virtual(damaged_second_copy()))
