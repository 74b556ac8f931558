"""Files of clients, and their batches: rows in SQLite, and a file in a folder for each content.

Each thing is found by its id and its tenant together. All processes of a gateway share the store. A batch has a holder:
the process that runs it, which renews its beat; a batch whose beat has stopped is free for another process, and so is
one whose process has left."""

import fcntl
import hashlib
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from random import Random

import msgspec

from gateway.batches.bounds import FileBounds, bytes_of
from gateway.batches.leftovers import NEW, sweep
from gateway.batches.records import ACTIVE, BatchRecord, FileRecord
from gateway.stored.database import StoredDatabase

DEAD_SECONDS = 15.0  # a holder without a beat for this time is gone
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    owner TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, bytes INTEGER NOT NULL, purpose TEXT NOT NULL,
    record BLOB NOT NULL, PRIMARY KEY (owner, id)
);
CREATE TABLE IF NOT EXISTS batches (
    owner TEXT NOT NULL, id TEXT NOT NULL, created REAL NOT NULL, active INTEGER NOT NULL, holder TEXT NOT NULL,
    beat REAL NOT NULL, record BLOB NOT NULL, PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS files_by_age ON files (owner, created, id);
CREATE INDEX IF NOT EXISTS batches_by_age ON batches (owner, created, id);
CREATE INDEX IF NOT EXISTS batches_that_run ON batches (active, beat);
"""
Record = FileRecord | BatchRecord


class NoRoom(Exception):
    """The file does not fit."""

    def __init__(self, *, share: bool) -> None:
        """`share`: into its tenant's share, though all files together may have more."""
        super().__init__()
        self.share = share


class BatchStore:
    def __init__(
        self, folder: Path, bounds: FileBounds, *, days: float, clock: Callable[[], float], random: Random
    ) -> None:
        """`clock`: seconds since 1970. `random` draws ids, so nobody may be able to guess it."""
        self.clock, self._random = clock, random
        self.seconds, self.bounds = days * 86400, bounds
        self._folder = folder
        self._database = StoredDatabase(folder / "files.sqlite", _SCHEMA)

    async def aclose(self) -> None:
        await self._database.aclose()

    @property
    def is_empty(self) -> bool:
        """Whether no client has ever stored anything. OSError: nobody can tell."""
        return not self._database.file.exists()

    # ---- files

    def new_id(self, kind: str) -> str:
        return f"{kind}{self._random.getrandbits(128):032x}"

    def path(self, id: str, owner: str) -> Path:
        name = hashlib.sha256(f"{len(owner)}:{owner}{id}".encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / "contents" / name

    def outcomes(self, id: str, owner: str) -> tuple[Path, Path]:
        """The files of a batch's outcomes, which are no files of the client yet."""
        base = self.path(id, owner)
        return base.with_suffix(".output"), base.with_suffix(".errors")

    def new_content(self) -> tuple[int, Path]:
        """An open file for a content that comes, which has no name yet. It is locked until it is closed."""
        folder = self._folder / "contents"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=folder, suffix=NEW)
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return number, Path(name)

    async def sweep(self) -> None:
        """Remove what processes that were killed have left. Beside a database that was put aside all contents stay:
        they may be its own."""

        def remove(connection: sqlite3.Connection) -> None:
            rows = connection.execute("SELECT id, owner FROM files")
            wanted = {self.path(*row).name for row in rows}
            for row in connection.execute("SELECT id, owner FROM batches WHERE active = 1"):
                wanted |= {path.name for path in self.outcomes(*row)}
            if not self._database.aside.exists():
                sweep(self._folder / "contents", wanted, self.clock())

        await self._database.do(remove)

    async def add_file(
        self, owner: str, content: Path, *, name: str, purpose: str, id: str = "", bounded: bool = True
    ) -> FileRecord:
        """A new file has this content, which lies in the store's folder; its own name there stays until the caller
        removes it. NoRoom: there is too little room for it, and it is `bounded`."""
        id, now = id or self.new_id("file-"), self.clock()

        def add(connection: sqlite3.Connection) -> FileRecord:
            size = content.stat().st_size
            self._prune(connection)
            if bounded and size > self._room(connection, owner):
                raise NoRoom(share=size <= self._room(connection, ""))
            record = FileRecord(
                id=id,
                bytes=size,
                created_at=int(now),
                expires_at=int(now + self.seconds),
                filename=name,
                purpose=purpose,
            )
            path = self.path(id, owner)
            path.unlink(missing_ok=True)
            os.link(content, path)
            values = owner, id, now, size, purpose, msgspec.json.encode(record)
            connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", values)
            return record

        return await self._database.do(add)

    async def room(self, owner: str) -> int:
        """Bytes that further files of this tenant may have; below zero where batches have written more by now."""
        return await self._database.do(lambda connection: self._room(connection, owner))

    async def file(self, id: str, owner: str) -> FileRecord | None:
        found = await self._one("files", id, owner)
        return None if found is None else msgspec.json.decode(found, type=FileRecord)

    async def files(
        self, owner: str, *, purpose: str | None, limit: int, after: str | None, newest_first: bool
    ) -> tuple[list[FileRecord], bool]:
        """A page of files, and whether more follow."""
        where = "purpose = ?" if purpose is not None else "1"
        values = (purpose,) if purpose is not None else ()
        rows, more = await self._page("files", owner, where, values, limit, after, newest_first)
        return [msgspec.json.decode(row, type=FileRecord) for row in rows], more

    async def delete_file(self, id: str, owner: str) -> bool:
        def delete(connection: sqlite3.Connection) -> bool:
            count = connection.execute("DELETE FROM files WHERE owner = ? AND id = ?", (owner, id)).rowcount
            if count:
                self.path(id, owner).unlink(missing_ok=True)
            return count > 0

        return await self._database.do(delete)

    # ---- batches

    async def add_batch(self, owner: str, record: BatchRecord) -> None:
        values = owner, record.id, self.clock(), 1, "", 0.0, msgspec.json.encode(record)
        query = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)"
        await self._database.do(lambda connection: connection.execute(query, values))

    async def batch(self, id: str, owner: str) -> BatchRecord | None:
        found = await self._one("batches", id, owner)
        return None if found is None else msgspec.json.decode(found, type=BatchRecord)

    async def batches(self, owner: str, *, limit: int, after: str | None) -> tuple[list[BatchRecord], bool]:
        rows, more = await self._page("batches", owner, "1", (), limit, after, True)
        return [msgspec.json.decode(row, type=BatchRecord) for row in rows], more

    async def change(self, id: str, owner: str, change: Callable[[BatchRecord], None]) -> BatchRecord | None:
        """Change a batch's record, whoever holds it; None: there is none."""
        return await self._database.do(lambda connection: self._change(connection, id, owner, change))

    async def claim(self, holder: str, full: Collection[str] = ()) -> tuple[str, BatchRecord] | None:
        """A batch that no living process runs, with its tenant: this process holds it from now on. It is the oldest one
        of the tenant who has the fewest running ones. `full`: tenants of whom no further one may run here."""

        def claim(connection: sqlite3.Connection) -> tuple[str, BatchRecord] | None:
            self._prune(connection)
            # A beat of the future was written before the clock was set back.
            lives = self.clock() - DEAD_SECONDS, self.clock() + DEAD_SECONDS
            query = "SELECT owner, COUNT(*) FROM batches WHERE active = 1 AND beat BETWEEN ? AND ? GROUP BY owner"
            run = dict(connection.execute(query, lives))
            query = (
                "SELECT owner, MIN(created) FROM batches WHERE active = 1 AND beat NOT BETWEEN ? AND ? GROUP BY owner"
            )
            waiting = [row for row in connection.execute(query, lives) if row[0] not in full]
            if not waiting:
                return None
            owner, _ = min(waiting, key=lambda row: (run.get(row[0], 0), row[1]))
            query = (
                "SELECT id, record FROM batches WHERE owner = ? AND active = 1 AND beat NOT BETWEEN ? AND ? "
                "ORDER BY created LIMIT 1"
            )
            id, record = connection.execute(query, (owner, *lives)).fetchone()
            update = "UPDATE batches SET holder = ?, beat = ? WHERE owner = ? AND id = ?"
            connection.execute(update, (holder, self.clock(), owner, id))
            return owner, msgspec.json.decode(record, type=BatchRecord)

        return await self._database.do(claim)

    async def beat(self, id: str, owner: str, holder: str, change: Callable[[BatchRecord], None]) -> BatchRecord | None:
        """The process still runs the batch; None: another one does, or the batch is gone."""

        def beat(connection: sqlite3.Connection) -> BatchRecord | None:
            query = "UPDATE batches SET beat = ? WHERE owner = ? AND id = ? AND holder = ?"
            if not connection.execute(query, (self.clock(), owner, id, holder)).rowcount:
                return None
            return self._change(connection, id, owner, change)

        return await self._database.do(beat)

    async def release(self, id: str, owner: str, holder: str) -> None:
        """Another process may run the batch at once."""
        query = "UPDATE batches SET holder = '', beat = 0 WHERE owner = ? AND id = ? AND holder = ?"
        await self._database.do(lambda connection: connection.execute(query, (owner, id, holder)))

    # ---- in the database's thread

    def _change(
        self, connection: sqlite3.Connection, id: str, owner: str, change: Callable[[BatchRecord], None]
    ) -> BatchRecord | None:
        found = connection.execute("SELECT record FROM batches WHERE owner = ? AND id = ?", (owner, id)).fetchone()
        if found is None:
            return None
        record = msgspec.json.decode(found[0], type=BatchRecord)
        change(record)
        query = "UPDATE batches SET record = ?, active = ? WHERE owner = ? AND id = ?"
        connection.execute(query, (msgspec.json.encode(record), int(record.status in ACTIVE), owner, id))
        return record

    def _room(self, connection: sqlite3.Connection, owner: str) -> int:
        held = Counter[str](dict(connection.execute("SELECT owner, SUM(bytes) FROM files GROUP BY owner").fetchall()))
        for each, id in connection.execute("SELECT owner, id FROM batches WHERE active = 1").fetchall():
            held[each] += bytes_of(self.outcomes(id, each))
        return self.bounds.room(held, owner)

    def _prune(self, connection: sqlite3.Connection) -> None:
        """Remove files and batches that are too old."""
        oldest = self.clock() - self.seconds
        for owner, id in connection.execute("SELECT owner, id FROM files WHERE created < ?", (oldest,)).fetchall():
            connection.execute("DELETE FROM files WHERE owner = ? AND id = ?", (owner, id))
            self.path(id, owner).unlink(missing_ok=True)
        connection.execute("DELETE FROM batches WHERE active = 0 AND created < ?", (oldest,))

    async def _one(self, table: str, id: str, owner: str) -> bytes | None:
        query = f"SELECT record FROM {table} WHERE owner = ? AND id = ?"
        found = await self._database.do(lambda connection: connection.execute(query, (owner, id)).fetchone())
        return None if found is None else found[0]

    async def _page(
        self,
        table: str,
        owner: str,
        where: str,
        values: tuple[object, ...],
        limit: int,
        after: str | None,
        newest_first: bool,
    ) -> tuple[list[bytes], bool]:
        order, beyond = ("DESC", "<") if newest_first else ("ASC", ">")

        def read(connection: sqlite3.Connection) -> list[bytes]:
            condition, more = where, values
            if after is not None:
                at = connection.execute(f"SELECT created FROM {table} WHERE owner = ? AND id = ?", (owner, after))
                found = at.fetchone()
                if found is None:
                    raise KeyError(after)
                condition = f"{where} AND (created, id) {beyond} (?, ?)"
                more = (*values, found[0], after)
            query = (
                f"SELECT record FROM {table} WHERE owner = ? AND {condition} "
                f"ORDER BY created {order}, id {order} LIMIT ?"
            )
            return [row[0] for row in connection.execute(query, (owner, *more, limit + 1))]

        rows = await self._database.do(read)
        return rows[:limit], len(rows) > limit
