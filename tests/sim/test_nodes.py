"""Nodes on one loop: clocks of their own, freezes that stop timers too, and deaths after which nothing runs."""

import asyncio
from random import Random

from tests.sim.seeds.nodes import NodeLoop, SimNode, run_nodes


def test_each_node_has_a_clock_of_its_own_and_sleeps_by_it() -> None:
    async def main(loop: NodeLoop) -> None:
        fast = SimNode("fast", rate=2.0, offset=100.0)

        async def sleep() -> tuple[float, float]:
            began = loop.time()
            await asyncio.sleep(10)
            return began, loop.time()

        began, ended = await fast.spawn(sleep())
        assert began == 100.0 and abs(ended - 110.0) < 1e-6 and abs(loop.time() - 5.0) < 1e-6

    run_nodes(main, Random(1))


def test_nothing_of_a_frozen_node_runs_and_what_came_due_runs_when_it_thaws() -> None:
    async def main(loop: NodeLoop) -> None:
        node, ran = SimNode("node"), list[float]()
        node.run(loop.call_later, 1.0, lambda: ran.append(loop.time()))
        node.freeze()
        await asyncio.sleep(5)
        assert ran == []
        node.thaw()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(ran) == 1 and ran[0] >= 5 - 1e-6

    run_nodes(main, Random(1))


def test_a_dead_node_does_not_even_unwind() -> None:
    async def main(loop: NodeLoop) -> None:
        node, unwound = SimNode("node"), list[str]()
        loop.nodes.append(node)

        async def work() -> None:
            try:
                await asyncio.sleep(1)
            finally:
                unwound.append("finally")

        node.spawn(work())
        await asyncio.sleep(0.5)
        node.dead = True
        await asyncio.sleep(5)
        assert unwound == []

    run_nodes(main, Random(1))


def test_timers_fire_up_to_a_nanosecond_early() -> None:
    async def main(loop: NodeLoop) -> None:
        early = 0
        for _ in range(50):
            due = loop.time() + 0.1
            await asyncio.sleep(0.1)
            assert due - 2e-9 <= loop.time()
            early += loop.time() < due
        assert early > 10

    run_nodes(main, Random(1))
