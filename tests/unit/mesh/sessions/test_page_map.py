"""Page maps: packed small, in slices, and sent only while a gateway watches and something changes."""

import asyncio
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from engine.pool.pages import PagePool
from mesh.messages.codec import UP
from mesh.messages.message import Message
from mesh.messages.reports import PageMap
from mesh.sessions.page_map import LETTERS, MOST_CELLS, PAGE_STATES, PERIOD_SECONDS, PageWatch, pack, spell
from tests.sim.loop import virtual


@dataclass
class FixedPool:
    """A pool whose states the test writes."""

    names: list[str]
    slices: list[int] = field(default_factory=list)

    @property
    def pages(self) -> int:
        return len(self.names)

    def states(self, first: int, stop: int) -> list[str]:
        self.slices.append(stop - first)
        return self.names[first:stop]


@dataclass(eq=False)
class WatchingSession:
    sent: list[tuple[float, Message]] = field(default_factory=list)
    ended: bool = False

    def send(self, message: Message) -> None:
        self.sent.append((asyncio.get_running_loop().time(), message))


def read(text: str) -> tuple[int, list[str]]:
    """What a browser reads: pages of a cell, and the state of each cell."""
    per_cell, _, runs = text.partition(":")
    by_letter = dict(zip(LETTERS, PAGE_STATES, strict=True))
    cells = [by_letter[letter] for letter, count in re.findall(r"(\D)(\d+)", runs) for _ in range(int(count))]
    return int(per_cell), cells


@given(st.lists(st.sampled_from(PAGE_STATES), max_size=60), st.integers(1, 9))
def test_every_page_arrives_in_its_state_in_whatever_slices_it_is_packed(names: list[str], slice_pages: int) -> None:
    packed = asyncio.run(pack(FixedPool(names), slice_pages=slice_pages))
    assert read(spell(cast(PageMap, UP.decode(UP.encode(packed))))) == (1, names)


@given(st.lists(st.sampled_from(PAGE_STATES), min_size=1, max_size=90), st.integers(1, 20))
def test_a_cell_of_several_pages_shows_the_gravest_state(names: list[str], most_cells: int) -> None:
    per_cell, cells = read(spell(asyncio.run(pack(FixedPool(names), most_cells=most_cells, slice_pages=8))))
    groups = [names[i : i + per_cell] for i in range(0, len(names), per_cell)]
    assert len(cells) <= most_cells
    assert cells == [max(group, key=PAGE_STATES.index) for group in groups]


def test_a_pool_of_a_hundred_thousand_pages_is_packed_in_slices_and_stays_small() -> None:
    pool = FixedPool([PAGE_STATES[page * 7 % 5] for page in range(100_000)])
    packed = asyncio.run(pack(pool))
    assert max(pool.slices) <= 4096 and sum(pool.slices) == 100_000
    assert sum(packed.lengths) <= MOST_CELLS and len(UP.encode(packed)) < 64 * 1024


def test_the_pages_of_a_real_pool_show_what_happens_to_them() -> None:
    pool = PagePool(6)
    used, landing = pool.take(2, b""), pool.land(2, "writer", b"")
    assert used is not None and landing is not None
    pool.quarantine(landing[:1])
    _, cells = read(spell(asyncio.run(pack(pool))))
    assert sorted(cells) == ["free", "free", "in_use", "in_use", "landing", "quarantined"]


def test_a_state_of_a_newer_worker_is_a_question_mark() -> None:
    assert spell(PageMap(1, bytes((0, 9)), (3, 2))) == "1:f3?2"


@virtual
async def watched(seconds: int, *, change_at: tuple[float, ...] = (), again_at: float | None = None) -> list[float]:
    """When maps were sent to one session that watches for so many seconds."""
    session, pool = WatchingSession(), FixedPool(["free"] * 8)
    watch, loop = PageWatch(pool), asyncio.get_running_loop()
    begin = loop.time()
    watch.watch(cast(Any, session), seconds)
    for number, at in enumerate(change_at):
        loop.call_at(begin + at, pool.names.__setitem__, number % 8, "in_use")
    if again_at is not None:
        loop.call_at(begin + again_at, watch.watch, cast(Any, session), seconds)
    await asyncio.sleep(30)
    watch.close()
    session.sent = [(at - begin, message) for at, message in session.sent]
    return [at for at, _ in session.sent]


def test_a_map_is_sent_at_once_and_then_only_when_pages_changed() -> None:
    assert watched(4) == [0.0]
    assert watched(4, change_at=(1.2,)) == [0.0, 1.5]


def test_at_most_two_maps_a_second_are_sent_whatever_changes() -> None:
    times = watched(3, change_at=tuple(step / 100 for step in range(1, 300)))
    assert len(times) <= 6 and all(b - a >= PERIOD_SECONDS for a, b in pairwise(times))


def test_the_maps_end_with_the_watch_and_go_on_when_it_is_repeated() -> None:
    assert watched(2, change_at=(5.0,)) == [0.0]
    assert watched(2, change_at=(3.2,), again_at=1.8) == [0.0, 3.5]


@virtual
async def test_a_session_that_ended_gets_nothing_and_an_unwatched_pool_is_not_read() -> None:
    pool, session = FixedPool(["free"]), WatchingSession()
    watch = PageWatch(pool)
    await asyncio.sleep(5)
    assert pool.slices == []
    watch.watch(cast(Any, session), 10)
    session.ended = True
    await asyncio.sleep(5)
    assert session.sent == []
