"""A folder for a whole model, in memory if enough is free: writing 16 GB to a disk can take minutes.

The run makes the folder and removes it, because a section that is cut off cannot remove its files."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 32 << 30  # twice the largest model
_VARIABLE = "GPU_RUN_FOLDER"  # not BATON_…: Baton refuses settings that it does not know


@contextmanager
def room(memory: Path = MEMORY, least_free_bytes: int = LEAST_FREE_BYTES) -> Iterator[Path]:
    """Makes the folder for the duration of this context. Sections started meanwhile find it by `folder()`."""
    plenty = memory.is_dir() and shutil.disk_usage(memory).free >= least_free_bytes
    with tempfile.TemporaryDirectory(prefix="baton-gpu-", dir=memory if plenty else None) as made:
        os.environ[_VARIABLE] = made
        try:
            yield Path(made)
        finally:
            del os.environ[_VARIABLE]


def folder() -> Path:
    """The run's folder; the folder of temporary files when a section was started alone."""
    return Path(os.environ.get(_VARIABLE) or tempfile.gettempdir())
