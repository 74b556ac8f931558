"""One file to which whole lines are appended, each of them the outcome of a request.

A process that is killed while it writes leaves a torn last line; the next one cuts it off before it writes. No other
line is ever changed. A file that other programs have made is refused and stays as it is. A lock, which the kernel frees
when the process ends, keeps a second run out."""

import errno
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.batches.outcome import ID_PREFIX
from gateway.batches.problems import BatchBusy, BatchRefused, LedgerUnopened, LedgerUnwritable

_BEGIN = json.dumps({"id": ID_PREFIX})[:-2].encode()  # every line begins with it, and a torn one with a part of it
_LOCKED = (errno.EACCES, errno.EAGAIN)


class LedgerFile:
    def __init__(self, path: Path) -> None:
        """Open or make the file. BatchRefused if that cannot be, or if another run has it open."""
        self.path = path
        self._file = -1
        try:
            if path.exists() and not stat.S_ISREG(path.stat().st_mode):
                raise BatchRefused(f"{path} is no regular file; name a file, since a later run must read it")
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._lock()
        except OSError as error:
            self.close()
            raise LedgerUnopened(f"{path} cannot be written: {error.strerror}; name another file") from None
        except BatchRefused:
            self.close()
            raise
        self._size = os.fstat(self._file).st_size

    def outcomes(self) -> Iterator[tuple[str, bool]]:
        """The custom_ids of the whole lines, and whether their requests failed. It changes nothing; `cut` needs it to
        have come to its end."""
        whole = 0
        with open(self.path, "rb") as file:
            for number, raw in enumerate(file, 1):
                if not raw.endswith(b"\n"):
                    if not (raw.startswith(_BEGIN) or _BEGIN.startswith(raw)):
                        raise self._foreign(number)
                    break
                whole += len(raw)
                yield self._outcome(raw, number)
        self._size = whole

    def cut(self) -> int:
        """Cut the torn last line off; the number of bytes that it had."""
        torn = os.fstat(self._file).st_size - self._size
        if torn:
            os.ftruncate(self._file, self._size)
        return torn

    def append(self, line: bytes) -> None:
        """Write a whole line, or none of it: then BatchStopped."""
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, self._size)
            raise self._unwritable(error) from None
        self._size += len(line)

    def sync(self) -> None:
        """Wait until the disk has all lines. Network file systems say only then that they are full."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._unwritable(error) from None

    @property
    def is_there(self) -> bool:
        """Whether the path still names this file; somebody may have moved or removed it."""
        try:
            return os.path.samestat(os.fstat(self._file), self.path.stat())
        except OSError:
            return False

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED:
                raise BatchBusy(f"another run writes {self.path}; wait for its end, or name another file") from None
            # Some network file systems have no locks: there a second run is not noticed.

    def _outcome(self, raw: bytes, number: int) -> tuple[str, bool]:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            raise self._foreign(number) from None
        if not isinstance(value, dict) or not {"custom_id", "response", "error"} <= value.keys():
            raise self._foreign(number)
        custom_id, response = value["custom_id"], value["response"]
        if not isinstance(custom_id, str) or not isinstance(response, dict | None):
            raise self._foreign(number)
        status = response.get("status_code") if response is not None else None
        if value["error"] is None and not isinstance(status, int):
            raise self._foreign(number)
        return custom_id, value["error"] is not None or (isinstance(status, int) and status >= 400)

    def _unwritable(self, error: OSError) -> LedgerUnwritable:
        return LedgerUnwritable(
            f"{self.path} cannot be written: {error.strerror}. It holds whole lines only. Make room, and run the same "
            "command again: it goes on where it stopped"
        )

    def _foreign(self, number: int) -> BatchRefused:
        return BatchRefused(
            f"{self.path}: line {number} is no answer of a batch, so this file is something else and stays as it is; "
            "name another file"
        )
