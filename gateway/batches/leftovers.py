"""Removes what killed processes leave in the folder of contents: uploads that never ended, outcomes of batches that are
over, and contents without a row."""

import fcntl
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

NEW = ".new"  # ends the name of a content that is not stored yet
NEW_SECONDS = 60.0  # an upload has its lock by then
ORPHAN_SECONDS = 86400.0  # for which everything else stays


def sweep(folder: Path, wanted: Collection[str], now: float) -> None:
    """Remove old files that nobody wants. `wanted`: names of contents, and of outcomes of batches that run."""
    with suppress(FileNotFoundError):
        for entry in list(os.scandir(folder)):
            with suppress(OSError):
                age = now - entry.stat().st_mtime
                if entry.name.endswith(NEW):
                    if age > NEW_SECONDS and not _locked(Path(entry)):
                        os.unlink(entry)
                elif entry.name not in wanted and age > ORPHAN_SECONDS:
                    os.unlink(entry)


def _locked(path: Path) -> bool:
    """Whether a living process writes the upload."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
