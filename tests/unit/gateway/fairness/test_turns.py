"""Turns go round, and a first turn in a pass costs nothing."""

import asyncio

from gateway.fairness.loop_turns import Turns
from tests.sim.loop import virtual


@virtual
async def test_one_begins_in_each_pass_and_the_first_without_waiting() -> None:
    turns, begun, passes = Turns(), list[tuple[str, int]](), [0]

    async def work(name: str) -> None:
        await turns.first()
        begun.append((name, passes[0]))

    async def count() -> None:
        while len(begun) < 4:
            await asyncio.sleep(0)
            passes[0] += 1

    tasks = [asyncio.ensure_future(work(name)) for name in "abcd"]
    await count()
    await asyncio.gather(*tasks)
    assert [name for name, _ in begun] == ["a", "b", "c", "d"]
    at = [number for _, number in begun]
    assert at[0] == 0 and len(set(at)) == 4, "each in a pass of its own"


@virtual
async def test_a_lone_caller_never_leaves_its_pass() -> None:
    turns, woken = Turns(), list[int]()
    for _ in range(3):
        asyncio.get_running_loop().call_soon(woken.append, 1)
        await turns.first()
        assert woken == [], "nothing else ran"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        woken.clear()
