"""A folder for a whole model, in memory where there is plenty: writing 16 GB to a disk can take minutes.

The run makes it and removes it, because a section that is cut off removes nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 32 << 30  # twice the largest model
_VARIABLE = "GPU_RUN_FOLDER"  # no BATON_: those are settings, and unknown ones are refused


@contextmanager
def room(memory: Path = MEMORY, least_free_bytes: int = LEAST_FREE_BYTES) -> Iterator[Path]:
    """Sections started meanwhile find it by `folder()`."""
    plenty = memory.is_dir() and shutil.disk_usage(memory).free >= least_free_bytes
    with tempfile.TemporaryDirectory(prefix="baton-gpu-", dir=memory if plenty else None) as made:
        os.environ[_VARIABLE] = made
        try:
            yield Path(made)
        finally:
            del os.environ[_VARIABLE]


def folder() -> Path:
    """The run's, or that of temporary files where a section is started alone."""
    return Path(os.environ.get(_VARIABLE) or tempfile.gettempdir())
