"""When requests are sent: at given times (open loop), or each when an earlier one has ended (closed loop).

In an open loop a slow server does not slow the arrivals down, and a latency counts from the scheduled time, be the
request sent late or not. Otherwise a server that stalls would hide its queue (coordinated omission)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

Send = Callable[[int, float], Awaitable[None]]  # number of the request, scheduled time on the event loop's clock
Prepare = Callable[[int], None]  # builds the request's body, while there is time


def poisson_times(count: int, requests_per_second: float, random: Random) -> list[float]:
    """Arrival times in seconds: independent gaps, exponentially distributed; the first request arrives at 0."""
    times, at = list[float](), 0.0
    for _ in range(count):
        times.append(at)
        at += random.expovariate(requests_per_second)
    return times


async def open_loop(times: Sequence[float], send: Send, prepare: Prepare) -> None:
    """Send request i at times[i]; returns when all have ended."""
    loop = asyncio.get_running_loop()
    if times:
        prepare(0)
    begun = loop.time()
    async with asyncio.TaskGroup() as group:
        for number, at in enumerate(times):
            await asyncio.sleep(max(0.0, begun + at - loop.time()))
            group.create_task(_sent(send, number, begun + at))
            if number + 1 < len(times):
                await asyncio.sleep(0)  # the request leaves before the next one's body is built
                prepare(number + 1)


async def closed_loop(count: int, concurrency: int, send: Send, prepare: Prepare) -> None:
    """Keep `concurrency` requests under way; a request is scheduled when its turn comes."""
    numbers = iter(range(count))

    async def one_client() -> None:
        for number in numbers:
            prepare(number)
            await send(number, asyncio.get_running_loop().time())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(count, concurrency)):
            group.create_task(one_client())


async def _sent(send: Send, number: int, scheduled: float) -> None:
    await send(number, scheduled)
