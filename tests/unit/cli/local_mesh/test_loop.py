"""The services' loop measures microseconds, and no timer goes off before its time."""

import asyncio

from cli.local_mesh.loop import PreciseLoop


def run(work: object) -> object:
    assert asyncio.iscoroutine(work)
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        return runner.run(work)


def test_its_clock_tells_moments_within_a_millisecond_apart() -> None:
    async def work() -> int:
        loop = asyncio.get_running_loop()
        return len({loop.time() for _ in range(1000)})

    assert run(work()) > 100  # type: ignore[operator]


def test_timers_go_off_when_its_clock_says_so() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[float] = loop.create_future()
        begun = loop.time()
        loop.call_at(begun + 0.05, lambda: done.set_result(loop.time()))
        assert await done >= begun + 0.05
        begun = loop.time()
        await asyncio.sleep(0.02)
        assert loop.time() >= begun + 0.02

    run(work())


def test_no_timer_goes_off_before_its_time_by_the_loops_clock() -> None:
    """A part that wakes too early, finds nothing due and sleeps on has lost its wake-up."""

    async def work() -> float:
        loop = asyncio.get_running_loop()
        left: list[float] = []

        def look(due: float) -> None:
            left.append(due - loop.time())

        for step in range(300):
            for delay in (0.0001, 0.02):
                due = loop.time() + delay + step * 0.00037
                loop.call_later(delay + step * 0.00037, look, due)
                loop.call_at(due, look, due)
        while len(left) < 1200:
            await asyncio.sleep(0.01)
        return max(left)

    assert run(work()) <= 0  # type: ignore[operator]
