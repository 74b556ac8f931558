"""Responses that clients may fetch, continue, cancel and delete: in SQLite, bounded in bytes and in age.

Each response is found by its id and its tenant together. A response holds all items before its output, so that it can
be continued when those before it are gone. When the bound is reached, the tenant that holds most loses its oldest
responses. One that is generated in the background has a `beat`, which its process renews; when the beat stops, the
process is gone, and the response has failed."""

import logging
import sqlite3
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from gateway.stored.database import StoredDatabase, StoreUnusable

log = logging.getLogger("baton.gateway")

BEAT_SECONDS = 1.0  # between two signs of life of a response in the background
DEAD_SECONDS = 30.0  # without a sign of life its process counts as gone
KEPT_SHARE = 0.75  # share of the bound that a look at the whole file leaves
LOOK_SHARE = 0.125  # share of the bound that may be written between two such looks
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    owner TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL, beat REAL NOT NULL,
    answer BLOB NOT NULL, items BLOB NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON responses (owner, created, bytes);
"""


class ResponseRuns(Exception):
    """A response of this id is generated in the background now, by whichever process."""


class StoredState(Enum):
    ENDED = "ended"
    RUNNING = "running"  # generated in the background


@dataclass(frozen=True, slots=True)
class StoredResponse:
    id: str
    owner: str  # the tenant; empty where the gateway knows none
    answer: bytes  # the response as JSON
    items: bytes  # all items before its output, as a JSON list
    own_items: int  # items among them that its own request brought
    state: StoredState = StoredState.ENDED


class StoredResponses:
    def __init__(self, folder: Path, *, seconds: float, most_bytes: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970."""
        self._database = StoredDatabase(folder / "responses.sqlite", _SCHEMA)
        self._seconds, self._most_bytes, self._clock = seconds, most_bytes, clock
        self._written = most_bytes  # since this process last looked at the whole file
        self._lost = 0  # responses that could not be kept since the last that could

    async def aclose(self) -> None:
        await self._database.aclose()

    async def keep(self, make: Callable[[], StoredResponse]) -> bool:
        """`make` may take long; it is called in a thread. False: the response cannot be kept, because it is larger than
        the bound or the disk does not take it. ResponseRuns: one that is to run does so already."""
        try:
            kept = await self._database.do(lambda connection: self._insert(connection, make()))
        except StoreUnusable as error:
            self._lost += 1
            if self._lost == 1:
                log.warning("responses cannot be stored, see the setting responses_folder: %s", error)
            return False
        if self._lost:
            log.warning("responses are stored again; %d could not be", self._lost)
            self._lost = 0
        return kept

    async def find(self, id: str, owner: str) -> StoredResponse | None:
        oldest = self._clock() - self._seconds
        query = "SELECT answer, items, state, beat FROM responses WHERE owner = ? AND id = ? AND created >= ?"
        found = await self._database.do(lambda connection: connection.execute(query, (owner, id, oldest)).fetchone())
        return None if found is None else self._unpacked(id, owner, *found)

    async def delete(self, id: str, owner: str) -> bool:
        query = "DELETE FROM responses WHERE owner = ? AND id = ?"
        return await self._database.do(lambda connection: connection.execute(query, (owner, id)).rowcount) > 0

    # ---- responses in the background

    async def beat(self, id: str, owner: str) -> bool:
        """The response is still generated. False: it is to stop, because it is cancelled or deleted."""
        query = "UPDATE responses SET beat = ? WHERE owner = ? AND id = ? AND state = ?"
        values = self._clock(), owner, id, StoredState.RUNNING.value
        return await self._database.do(lambda connection: connection.execute(query, values).rowcount) > 0

    async def end(self, id: str, owner: str, answer: bytes) -> bool:
        """The response has ended in this way. False: it had ended before, or was deleted."""
        query = (
            "UPDATE responses SET answer = ?, bytes = length(items) + ?, state = ? "
            "WHERE owner = ? AND id = ? AND state = ?"
        )

        def write(connection: sqlite3.Connection) -> int:
            packed = zlib.compress(answer)
            states = StoredState.ENDED.value, owner, id, StoredState.RUNNING.value
            return connection.execute(query, (packed, len(packed), *states)).rowcount

        return await self._database.do(write) > 0

    # ---- in the database's thread

    def _insert(self, connection: sqlite3.Connection, response: StoredResponse) -> bool:
        now, row = self._clock(), _packed(response)
        size = len(row[0]) + len(row[1])
        if size > self._most_bytes * KEPT_SHARE:
            return False
        if response.state is StoredState.RUNNING:
            query = "SELECT 1 FROM responses WHERE owner = ? AND id = ? AND state = ? AND beat > ?"
            running = response.owner, response.id, response.state.value, now - DEAD_SECONDS
            if connection.execute(query, running).fetchone() is not None:
                raise ResponseRuns
        values = response.owner, response.id, now, response.state.value, now, *row, size
        connection.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        self._written += size
        if self._written >= self._most_bytes * LOOK_SHARE:
            self._written = 0
            self._prune(connection, now - self._seconds)
        return True

    def _prune(self, connection: sqlite3.Connection, oldest: float) -> None:
        dead = self._clock() - DEAD_SECONDS
        query = "DELETE FROM responses WHERE created < ? AND (state = ? OR beat < ?)"
        connection.execute(query, (oldest, StoredState.ENDED.value, dead))
        held = dict(connection.execute("SELECT owner, SUM(bytes) FROM responses GROUP BY owner"))
        room = self._most_bytes * KEPT_SHARE
        while sum(held.values()) > room:
            owner = max(held, key=lambda each: held[each])
            others = sorted(held.values(), reverse=True)[1:2]
            least = max(others[0] if others else 0, held[owner] - (sum(held.values()) - room))
            held[owner] = self._drop_oldest(connection, owner, held[owner], least)
        connection.execute("PRAGMA incremental_vacuum")

    def _drop_oldest(self, connection: sqlite3.Connection, owner: str, holds: int, least: float) -> int:
        """Remove this tenant's oldest responses until it holds `least` bytes or fewer, one at least."""
        query = "SELECT id, bytes FROM responses WHERE owner = ? ORDER BY created"
        for id, size in connection.execute(query, (owner,)).fetchall():
            connection.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id))
            holds -= size
            if holds <= least:
                return holds
        return 0

    def _unpacked(self, id: str, owner: str, answer: bytes, items: bytes, state: str, beat: float) -> StoredResponse:
        text = zlib.decompress(answer)
        if state != StoredState.ENDED.value and self._clock() - beat > DEAD_SECONDS:
            text, state = failed(text, "the gateway that generated this response ended"), StoredState.ENDED.value
        own, _, listed = zlib.decompress(items).partition(b"\n")
        return StoredResponse(id, owner, text, listed, int(own), StoredState(state))


def failed(answer: bytes, message: str) -> bytes:
    """The response as one that has failed."""
    error = {"code": "server_error", "message": message, "param": None, "reason": "INTERNAL"}
    return msgspec.json.encode(msgspec.json.decode(answer) | {"status": "failed", "error": error})


def _packed(response: StoredResponse) -> tuple[bytes, bytes]:
    return zlib.compress(response.answer), zlib.compress(b"%d\n%b" % (response.own_items, response.items))
