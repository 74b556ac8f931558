"""Pauses: they are over when their timer has fired, even if it fires before its time."""

import asyncio

from mesh.timing.pause import Pause
from tests.sim.loop import run_virtual, virtual


def test_a_pause_is_over_when_its_timer_fires_even_if_the_clock_is_not_there_yet() -> None:
    async def main() -> None:
        loop, pause, ends = asyncio.get_running_loop(), Pause(), list[tuple[bool, bool]]()
        assert pause.over
        due = loop.time() + 0.1
        pause.begin(0.1, lambda: ends.append((pause.over, loop.time() < due)))
        assert not pause.over
        await asyncio.sleep(0.2)
        assert ends == [(True, True)]

    run_virtual(main(), early_seconds=5e-10)


@virtual
async def test_a_pause_that_begins_again_ends_once_and_later() -> None:
    pause, ends = Pause(), list[float]()
    for _ in range(3):
        pause.begin(0.1, lambda: ends.append(asyncio.get_running_loop().time()))
        await asyncio.sleep(0.05)
    assert not pause.over
    await asyncio.sleep(1)
    assert pause.over and [round(each, 6) for each in ends] == [0.2]
