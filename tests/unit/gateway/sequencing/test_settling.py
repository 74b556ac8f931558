"""A gateway that has just started, or was stopped, does not know the mesh yet. After a while it does, and judges the
waiting requests once."""

import asyncio

from gateway.sequencing.startup_wait import Settling
from mesh.rules import RULES
from tests.sim.loop import virtual

SECONDS = RULES.settling_seconds


@virtual
async def test_a_gateway_settles_a_while_after_its_start_and_judges_waiting_requests_once() -> None:
    calls = list[float]()
    mine = Settling(RULES, lambda: calls.append(asyncio.get_running_loop().time()))
    began = asyncio.get_running_loop().time()
    mine.start()
    await asyncio.sleep(SECONDS - 0.5)
    assert not mine.over and calls == []
    await asyncio.sleep(60.0)
    assert mine.over and len(calls) == 1 and SECONDS <= calls[0] - began <= SECONDS + RULES.heartbeat_seconds
    mine.stop()


@virtual
async def test_a_gateway_that_was_stopped_settles_again_even_before_its_timer_has_run() -> None:
    calls = list[bool]()
    mine = Settling(RULES, lambda: calls.append(True))
    mine.start()
    await asyncio.sleep(SECONDS + 5.0)
    assert mine.over and len(calls) == 1
    mine._due -= RULES.late_seconds + RULES.heartbeat_seconds + 0.1  # as after a stop: the look is overdue
    assert not mine.over
    await asyncio.sleep(SECONDS + 5.0)
    assert mine.over and len(calls) == 2
    mine.stop()


@virtual
async def test_before_workers_can_reach_it_nothing_is_awaited() -> None:
    assert Settling(RULES, lambda: None).over
