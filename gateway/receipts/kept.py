"""Receipts that can be fetched for a while: a folder with a file for each, bounded in bytes and in age.

Files, so that all gateway processes of a host serve each other's receipts, also after a restart. A file's name is a
hash of the receipt's id and of who may read it: nobody finds a file by the id alone that belongs to another."""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

BLOCK_BYTES = 4096  # a file takes whole blocks of the disk
PRUNE_DIVISOR = 4  # between two looks at the whole folder this process writes the bound divided by this


class KeptReceipts:
    """Its methods wait for the disk: call them in a thread."""

    def __init__(self, folder: Path, *, seconds: float, most_bytes: int, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970."""
        self._folder = folder
        self._seconds = seconds
        self._most_bytes = most_bytes
        self._clock = clock
        self._written = most_bytes  # since it last looked at the whole folder

    def keep(self, id: str, owner: str, data: bytes) -> None:
        """OSError where the folder cannot be written."""
        if len(data) > self._most_bytes:
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._written += on_disk(len(data))
        if self._written >= self._most_bytes // PRUNE_DIVISOR:
            self._written = on_disk(len(data))
            self.prune()
        number, name = tempfile.mkstemp(dir=self._folder, suffix=".new")
        try:
            with os.fdopen(number, "wb") as out:
                out.write(data)
            os.utime(name, (self._clock(),) * 2)
            os.replace(name, self._file(id, owner))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def find(self, id: str, owner: str) -> bytes | None:
        try:
            with self._file(id, owner).open("rb") as file:
                if os.fstat(file.fileno()).st_mtime < self._clock() - self._seconds:
                    return None
                return file.read()
        except OSError:
            return None

    def prune(self) -> None:
        """Remove what is too old, then the oldest until there is room for what is written before the next look."""
        oldest, found = self._clock() - self._seconds, list[tuple[float, int, str]]()
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # another process has removed it
                    facts = entry.stat(follow_symlinks=False)
                    found.append((facts.st_mtime, on_disk(facts.st_size), entry.path))
        found.sort()
        held, room = sum(size for _, size, _ in found), self._most_bytes - self._most_bytes // PRUNE_DIVISOR
        for seconds, size, path in found:
            if seconds >= oldest and held <= room:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            held -= size

    def _file(self, id: str, owner: str) -> Path:
        name = hashlib.sha256(f"{len(owner)}:{owner}{id}".encode("utf-8", "surrogatepass")).hexdigest()
        return self._folder / f"{name}.json"


def on_disk(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
