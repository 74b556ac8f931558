"""One SQLite file that the processes of a gateway share: what they keep for clients outlives each of them.

All work on the disk is done in one thread of its own, in transactions. A file that is damaged is put aside, and a new
one begins, which the other processes take, too; a full disk makes a call fail and nothing else."""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

log = logging.getLogger("baton.gateway")

BUSY_SECONDS = 5.0  # a writer waits so long for another process's transaction
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
Found = TypeVar("Found")


class StoreUnusable(Exception):
    """The disk does not take or give what is kept; the message says why."""


class StoredDatabase:
    def __init__(self, file: Path, schema: str) -> None:
        """`schema`: statements that make every table and index that is not there yet."""
        self.file, self._schema = file, schema
        self.aside = file.with_suffix(".damaged")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=file.stem)
        self._connection: sqlite3.Connection | None = None
        self._identity = _identity(file)  # identity of the file that is open, or was last
        self._closed = False

    async def do(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        """Run `work` in one transaction. StoreUnusable: nothing of it was kept."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._do, work)

    async def aclose(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _do(self, work: Callable[[sqlite3.Connection], Found]) -> Found:
        try:
            connection = self._opened()
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)
        except sqlite3.OperationalError as error:  # a full disk, a folder that cannot be written
            self._close()
            raise StoreUnusable(f"{self.file.name}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._close()
            if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                raise StoreUnusable(f"{self.file.name}: {error}") from None
            self._put_aside(error)
            raise StoreUnusable(f"{self.file.name} was damaged and is put aside: {error}") from None
        except OSError as error:
            raise StoreUnusable(f"{self.file.name}: {error.strerror or error}") from None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and _identity(self.file) != self._identity:
            self._close()  # another process has put it aside, or somebody has removed it
        if self._connection is None:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
            self._identity = _identity(self.file)
            connection = sqlite3.connect(self.file, timeout=BUSY_SECONDS, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
                connection.executescript(self._schema)
            except sqlite3.Error:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _put_aside(self, error: sqlite3.DatabaseError) -> None:
        if _identity(self.file) != self._identity:
            return  # another process has done it
        log.error("%s is damaged (%s): it is now %s, and a new file begins", self.file, error, self.aside.name)
        os.replace(self.file, self.aside)
        for more in ("-wal", "-shm"):
            Path(f"{self.file}{more}").unlink(missing_ok=True)


def _identity(file: Path) -> tuple[int, int] | None:
    """Two paths with the same value are one file; None: there is none."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
