"""The single measurements of bench/gateway.py, each over one target."""

import asyncio
from collections.abc import Awaitable
from random import Random
from statistics import quantiles

from bench.gateway_client import StreamClient, connect, request_bytes, unread_connection
from bench.gateway_hostile import Say, attack, attacks, half_sent
from bench.gateway_targets import GatewayTarget, Target

WINDOW = 4  # steps under way at once, as a worker that computes ahead of the network
MOST_TOKENS = 2000  # tokens of one stream, at most; the built-in model has a context of 2048
ATTACK_SECONDS = 5.0
UNREAD_CHOICES = 16  # choices in a stream whose client does not read: many, so that it is behind soon


def ignore(client: StreamClient, count: int) -> None:
    pass


async def open_streams(target: Target, count: int) -> list[StreamClient]:
    """Open so many streams; return when each has its first token."""
    clients = [await connect(target.port, ignore) for _ in range(count)]
    for client in clients:
        client.ask(request_bytes(MOST_TOKENS, target.port))
    async with asyncio.timeout(60):
        while not all(client.events for client in clients):
            await asyncio.sleep(0.005)
    return clients


async def close_streams(target: Target, clients: list[StreamClient]) -> None:
    for client in clients:
        client.transport.abort()
    if isinstance(target, GatewayTarget):
        await target.idle()
    else:
        await asyncio.sleep(0.1)


async def tokens_per_second(target: Target, count: int, seconds: float) -> float:
    """Measure as fast as it goes: the next step comes when all but the last few have reached every client."""
    loop = asyncio.get_running_loop()
    clients, done = await open_streams(target, count), loop.create_future()
    received, sent, began = 0, 0, loop.time()

    def on_events(client: StreamClient, number: int) -> None:
        nonlocal received, sent
        received += number
        while received >= (sent - WINDOW) * count and not done.done():
            if loop.time() - began > seconds or sent > MOST_TOKENS - 2 * WINDOW:
                done.set_result(None)
                return
            target.step()
            sent += 1

    for client in clients:
        client.on_events = on_events
    for _ in range(WINDOW):
        target.step()
        sent += 1
    await asyncio.wait_for(done, seconds + 60)
    rate = received / (loop.time() - began)
    await close_streams(target, clients)
    return rate


class Pace:
    """Steps at a steady rate, for as long as the `async with` lasts."""

    def __init__(self, target: Target, steps_per_second: float) -> None:
        self._target, self._every = target, 1 / steps_per_second

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self._every
            await asyncio.sleep(max(0.0, due - loop.time()))
            self._target.step()


async def first_tokens(target: Target, count: int, rate: float, requests: int, random: Random) -> list[float]:
    """Seconds to the first token of requests that come while `count` streams run at this many tokens per second."""
    clients, found = await open_streams(target, count), list[float]()
    async with Pace(target, rate / count):
        for _ in range(requests):
            client = await connect(target.port, ignore)
            await asyncio.sleep(random.expovariate(200.0))
            client.ask(request_bytes(8, target.port))
            while not client.events:
                await asyncio.sleep(0.0005)
            found.append(client.first_seconds - client.asked_seconds)
            client.transport.abort()
    await close_streams(target, clients)
    return found


async def gap_p99(target: GatewayTarget, count: int, rate: float, seconds: float, *, stalled: int) -> float:
    """99th percentile of the seconds between two tokens of `count` clients, with so many that do not read."""
    clients = await open_streams(target, count)
    unread = [unread_connection(target.port, unread_request(target.port)) for _ in range(stalled)]
    async with Pace(target, rate / count):
        await asyncio.sleep(0.2)
        gaps = await _gaps(clients, asyncio.sleep(seconds))
    for connection in unread:
        connection.close()
    await close_streams(target, clients)
    return percentile(gaps, 99)


async def unread_and_closed(target: GatewayTarget, count: int, steps: int) -> None:
    """Clients that leave all of their streams unread, and then leave."""
    unread = [unread_connection(target.port, unread_request(target.port)) for _ in range(count)]
    async with asyncio.timeout(60):
        while len(target.worker.open) < count * UNREAD_CHOICES:
            await asyncio.sleep(0.01)
    for _ in range(steps):
        target.step()
        await asyncio.sleep(0.005)
    for connection in unread:
        connection.close()
    await target.idle()


async def attacked(target: GatewayTarget, count: int, rate: float) -> tuple[float, float]:
    """99th percentiles of the seconds between two tokens of `count` clients: while nothing else happens, and while
    hostile requests come."""
    ready = await asyncio.to_thread(list, attacks())  # made before anything is measured: some are large
    clients = await open_streams(target, count)
    async with Pace(target, rate / count):
        await asyncio.sleep(0.2)
        calm = await _gaps(clients, asyncio.sleep(ATTACK_SECONDS))
        hostile = await _gaps(clients, _attack(target.port, ready))
    await close_streams(target, clients)
    return percentile(calm, 99), percentile(hostile, 99)


async def _attack(port: int, ready: list[tuple[str, Say]]) -> None:
    halves = asyncio.ensure_future(half_sent(port, ATTACK_SECONDS))
    for _, say in ready:
        await attack(port, say)
    await halves


async def _gaps(clients: list[StreamClient], meanwhile: Awaitable[None]) -> list[float]:
    for client in clients:
        client.gaps = []
    await meanwhile
    return [gap for client in clients for gap in client.gaps or ()]


async def dropped(target: GatewayTarget, count: int, random: Random) -> None:
    """Connections that are dropped in mid-request: after a part of it, at once, or after some tokens."""
    whole = request_bytes(MOST_TOKENS, target.port)

    async def drop() -> None:
        client = await connect(target.port, ignore)
        match random.randrange(4):
            case 0:
                client.ask(whole[: random.randrange(1, len(whole))])
            case 1:
                client.ask(whole)
            case _:
                client.ask(whole)
                while not client.events:
                    await asyncio.sleep(0.001)
        client.transport.abort()

    for _ in range(0, count, 50):
        await asyncio.gather(*(drop() for _ in range(50)))
        target.step()


def unread_request(port: int) -> bytes:
    return request_bytes(MOST_TOKENS, port, n=UNREAD_CHOICES)


def percentile(values: list[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else values[0]
