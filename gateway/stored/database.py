"""One SQLite file that the processes of a gateway share: what they keep for clients outlives each of them.

All work on the disk is done in one thread of its own, in transactions. A file that is damaged is put aside, and a new
one begins; a full disk makes a call fail and nothing else."""

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
Found = TypeVar("Found")


class StoreUnusable(Exception):
    """The disk does not take or give what is kept; the message says why."""


class StoredDatabase:
    def __init__(self, file: Path, schema: str) -> None:
        """`schema`: statements that make every table and index that is not there yet."""
        self.file, self._schema = file, schema
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=file.stem)
        self._connection: sqlite3.Connection | None = None
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
            raise StoreUnusable(f"{self.file}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._close()
            self._put_aside(error)
            raise StoreUnusable(f"{self.file} was damaged and is put aside: {error}") from None
        except OSError as error:
            raise StoreUnusable(f"{self.file}: {error.strerror or error}") from None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self.file, os.O_CREAT | os.O_RDWR, 0o600))
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
        aside = self.file.with_suffix(".damaged")
        log.error("%s is damaged (%s): it is now %s, and a new file begins", self.file, error, aside.name)
        os.replace(self.file, aside)
        for more in ("-wal", "-shm"):
            Path(f"{self.file}{more}").unlink(missing_ok=True)
