"""Watchers get what changes; a slow one gets the latest and nothing in between, and one that left costs nothing."""

import asyncio
from collections.abc import AsyncIterator

from gateway.observability.broadcast import KEEPALIVE_SECONDS, MOST_OF_PEER, MOST_WATCHERS, PERIOD_SECONDS, Broadcast
from tests.sim.loop import virtual


class Topic:
    """A topic whose content the test writes, and how often somebody looked."""

    def __init__(self) -> None:
        self.value, self.looks, self.watched = 0, 0, 0

    def look(self) -> dict[str, bytes]:
        self.looks += 1
        return {"state": b"%d" % self.value}

    def on_watch(self) -> None:
        self.watched += 1


def event(value: int) -> bytes:
    return b"event: state\ndata: %d\n\n" % value


async def within(events: AsyncIterator[bytes], seconds: float) -> bytes | None:
    """The next event, if it comes in time."""
    try:
        return await asyncio.wait_for(anext(events), seconds)
    except TimeoutError:
        return None


@virtual
async def test_a_watcher_gets_the_present_at_once_and_then_each_change_once() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    events = broadcast.events(broadcast.join())
    assert await anext(events) == event(0)
    topic.value = 1
    assert await anext(events) == event(1)
    assert await anext(events) == b": nothing has changed\n\n"


@virtual
async def test_a_slow_reader_gets_the_latest_and_nothing_of_what_came_between() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    watcher = broadcast.join()
    events = broadcast.events(watcher)
    assert await anext(events) == event(0)
    for value in range(1, 41):  # it is busy sending while 40 changes pass
        topic.value = value
        await asyncio.sleep(PERIOD_SECONDS)
    assert list(watcher.sent) == ["state"], "a watcher holds one version, however many passed"
    assert await anext(events) == event(40)
    topic.value = 41
    assert await anext(events) == event(41)


@virtual
async def test_changes_are_sent_at_most_four_times_a_second() -> None:
    topic, loop = Topic(), asyncio.get_running_loop()
    broadcast = Broadcast(topic.look, topic.on_watch)
    events, begin, count = broadcast.events(broadcast.join()), loop.time(), 0
    while loop.time() < begin + 5:
        topic.value += 1
        await anext(events)
        count += 1
    assert count <= 5 / PERIOD_SECONDS + 2


@virtual
async def test_nothing_runs_before_the_first_watcher_and_after_the_last() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    await asyncio.sleep(10)
    assert topic.looks == 0
    watcher = broadcast.join()
    events = broadcast.events(watcher)
    await anext(events)
    await asyncio.sleep(1)
    watcher.leave()
    assert [data async for data in events] == [] and broadcast.watchers == {}
    await asyncio.sleep(1)
    looks, watched = topic.looks, topic.watched
    await asyncio.sleep(10)
    assert (topic.looks, topic.watched) == (looks, watched) and watched > 0


@virtual
async def test_a_watcher_that_left_while_it_waited_ends_at_once() -> None:
    topic, loop = Topic(), asyncio.get_running_loop()
    broadcast = Broadcast(topic.look, topic.on_watch)
    watcher = broadcast.join()
    events = broadcast.events(watcher)
    await anext(events)
    begin = loop.time()
    loop.call_later(0.1, watcher.leave)
    assert [data async for data in events] == [] and loop.time() - begin < KEEPALIVE_SECONDS / 2


@virtual
async def test_the_oldest_watcher_of_a_peer_makes_room_for_its_next_one_and_hears_why() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    other = broadcast.join("10.0.0.9")
    mine = [broadcast.join("10.0.0.1") for _ in range(MOST_OF_PEER)]
    assert not mine[0].gone, "negative control: so many may watch"
    newest = broadcast.join("10.0.0.1")
    assert [watcher.gone for watcher in (other, *mine[:2], newest)] == [False, True, False, False]
    (told,) = [data async for data in broadcast.events(mine[0])]
    assert told.startswith(b"event: end\ndata: a newer page took its place") and b"8 pages" in told
    assert len(broadcast.watchers) == MOST_OF_PEER + 1


@virtual
async def test_the_oldest_of_all_makes_room_when_many_peers_watch() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    watchers = [broadcast.join(f"10.0.0.{number}") for number in range(MOST_WATCHERS)]
    assert not any(watcher.gone for watcher in watchers)
    newest = broadcast.join("10.0.1.1")
    assert [watcher.gone for watcher in watchers[:2]] == [True, False] and not newest.gone
    assert await anext(broadcast.events(newest)) == event(0)
    assert len(broadcast.watchers) == MOST_WATCHERS


@virtual
async def test_closing_ends_all_watchers() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    watchers = [broadcast.join(str(number)) for number in range(MOST_WATCHERS)]
    broadcast.close()
    for watcher in watchers:
        assert [data async for data in broadcast.events(watcher)] == []
    assert broadcast.watchers == {} and broadcast.closed


@virtual
async def test_negative_control_a_reader_that_is_not_slow_sees_every_change() -> None:
    topic = Topic()
    broadcast = Broadcast(topic.look, topic.on_watch)
    events = broadcast.events(broadcast.join())
    seen = [await anext(events)]
    for value in (1, 2, 3):
        topic.value = value
        data = await within(events, 2 * PERIOD_SECONDS)
        assert data is not None
        seen.append(data)
    assert seen == [event(value) for value in range(4)]
