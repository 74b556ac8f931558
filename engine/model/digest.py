"""Digests of large files, which are read once and not at every start.

A digest is remembered in the cache folder under the files' names, sizes, times and inodes: a file that was touched in
any way is read again. Everything in that folder keeps two habits, which have their home here: there is one writer at a
time (a file lock that the kernel drops with its process), and files appear complete or not at all (written aside, then
renamed)."""

import fcntl
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3

from engine.formats.errors import ModelError

log = logging.getLogger("baton.model")

_HEX = 64  # letters of a digest


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds a lock on this file, for which it may have to wait. The file is never removed: it is the lock's
    identity."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ModelError(path, "cache folder", f"cannot be written ({error})", "Choose another cache folder.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remembered(files: Sequence[Path], cache: Path, purpose: str, compute: Callable[[], str]) -> str:
    """`compute()`, or its result from the last time when the files were the same. `purpose` keeps digests apart."""
    before = _stamp(files)
    note = cache / f"{purpose}-{blake3(before.encode()).hexdigest(16)}"
    known = note.read_text() if note.exists() else ""
    if len(known) == _HEX:  # a crash can leave an empty note
        return known
    digest = compute()
    if _stamp(files) != before:
        raise ModelError(files[0], "file", "changed while it was read", "Start again when the copy has finished.")
    aside = note.with_suffix(f".{os.getpid()}.tmp")
    try:
        aside.write_text(digest)
        aside.rename(note)
    except OSError as error:  # on a full disk the worker serves nevertheless
        aside.unlink(missing_ok=True)
        log.warning("%s cannot be written (%s): the next start reads the files again", note, error.strerror)
    return digest


def _stamp(files: Sequence[Path]) -> str:
    lines = []
    for path in files:
        about = path.stat()
        place = f"{path.resolve()} {about.st_dev} {about.st_ino}"
        lines.append(f"{place} {about.st_size} {about.st_mtime_ns} {about.st_ctime_ns}")
    return "\n".join(lines)
