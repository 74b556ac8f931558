"""Message logs of test meshes: while a test records, each mesh of real processes that it starts logs into a folder.

Meshes whose product is changed on purpose, by mutants or without resume, log nothing: their traces break the model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

_folders: list[Path] = []  # folders of the recordings that go on; the last one counts
_numbers = count()


@contextmanager
def recording(folder: Path) -> Iterator[Path]:
    """Meshes that start meanwhile log into folders of their own below this one."""
    _folders.append(folder)
    try:
        yield folder
    finally:
        _folders.remove(folder)


def logged(settings: Mapping[str, str], *, changed: bool = False) -> dict[str, str]:
    """The settings of a mesh that starts now. `changed`: its product is not the one that the model describes."""
    if not _folders or changed:
        return dict(settings)
    return {**settings, "message_log": str(_folders[-1] / f"mesh-{next(_numbers)}")}
