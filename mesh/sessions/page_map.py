"""Page maps: the state of every page of a worker's pool, packed for a gateway at which a person looks.

A gateway whose page `/ui` is open sends Watch. The worker then sends a PageMap whenever pages changed, at most twice a
second; without Watch nothing here runs. A large pool is packed in slices, so that no other message of the worker waits
for longer than a slice takes, and in cells of several pages, so that the message stays small."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from mesh.messages.reports import PageMap
from mesh.sessions.session import Session

PAGE_STATES = ("free", "cached", "in_use", "landing", "quarantined")  # a cell shows the last of its pages' states
LETTERS = "fculq"  # one for each state, for browsers
MOST_CELLS = 16_384  # cells in one map, at most
SLICE_PAGES = 4096
PERIOD_SECONDS = 0.5  # between two maps

_CODE = {state: code for code, state in enumerate(PAGE_STATES)}
_RUN = re.compile(rb"(.)\1*", re.DOTALL)


class PageStates(Protocol):
    """A pool of pages, as far as its map is concerned."""

    pages: int

    def states(self, first: int, stop: int) -> Sequence[str]:
        """Names of the states of the pages from `first` up to, but not including, `stop`."""


class PageWatch:
    """Sends maps of one pool to the gateways that watch it."""

    def __init__(self, pool: PageStates) -> None:
        self._pool = pool
        self._until: dict[Session, float] = {}  # when each watch ends, by the loop's clock
        self._tasks: set[asyncio.Task[None]] = set()

    def watch(self, session: Session, seconds: int) -> None:
        """Send maps over this session for `seconds` from now."""
        begin = session not in self._until
        self._until[session] = asyncio.get_running_loop().time() + seconds
        if begin:
            task = asyncio.get_running_loop().create_task(self._send_maps(session))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_maps(self, session: Session) -> None:
        loop, last = asyncio.get_running_loop(), None
        try:
            while loop.time() < self._until[session] and not session.ended:
                current = await pack(self._pool)
                if current != last:
                    session.send(current)
                    last = current
                await asyncio.sleep(PERIOD_SECONDS)
        finally:
            del self._until[session]

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def pack(pool: PageStates, *, most_cells: int = MOST_CELLS, slice_pages: int = SLICE_PAGES) -> PageMap:
    """The pool's map. Other tasks run between slices, so pages may change state while it is made."""
    per_cell = max(1, -(-pool.pages // most_cells))
    step = per_cell * max(1, slice_pages // per_cell)
    cells = bytearray()
    for first in range(0, pool.pages, step):
        if first:
            await asyncio.sleep(0)
        cells += cells_of(pool.states(first, min(first + step, pool.pages)), per_cell)
    return runs_of(bytes(cells), per_cell)


def cells_of(states: Iterable[str], per_cell: int) -> bytes:
    """One code for each cell: of its pages' states the one that comes last in PAGE_STATES."""
    codes = bytes(map(_CODE.__getitem__, states))
    return codes if per_cell == 1 else bytes(max(codes[i : i + per_cell]) for i in range(0, len(codes), per_cell))


def runs_of(cells: bytes, per_cell: int) -> PageMap:
    runs = [run[0] for run in _RUN.finditer(cells)]
    return PageMap(per_cell, bytes(run[0] for run in runs), tuple(map(len, runs)))


def spell(page_map: PageMap) -> str:
    """The map as text for browsers: pages of a cell, then each run as letter and length, "1:f120c3". A state that this
    version does not know is "?"."""
    letters = (LETTERS[code] if code < len(LETTERS) else "?" for code in page_map.states)
    runs = zip(letters, page_map.lengths, strict=False)
    return f"{page_map.pages_per_cell}:" + "".join(f"{letter}{length}" for letter, length in runs)
