"""The folder in which a run of quantization writes, until it is complete and gets its name.

One run at a time writes there, and it goes on where an earlier one of the same model, target and text has stopped."""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.formats.errors import ModelError

_SUFFIX, _ABOUT, _LOCK = ".partial", "about.json", "lock"


@dataclass(frozen=True, slots=True)
class PartialFolder:
    out: Path  # its name when it is complete
    about: dict[str, str]  # what the run makes

    @property
    def path(self) -> Path:
        return self.out.with_name(self.out.name + _SUFFIX)

    @property
    def goes_on(self) -> bool:
        """Whether an earlier run of the same thing has begun here."""
        try:
            return bool(json.loads((self.path / _ABOUT).read_text()) == self.about)
        except (OSError, ValueError):  # none has, or it was cut off while it began
            return False

    def begin(self) -> None:
        """Forget what another run has left."""
        for left in self.path.iterdir():
            if left.name != _LOCK:
                shutil.rmtree(left) if left.is_dir() else left.unlink()

    def begun(self) -> None:
        """From now on another run may go on here."""
        write_last(self.path / _ABOUT, json.dumps(self.about))

    def finish(self) -> None:
        for note in (*self.path.glob("*.note"), *self.path.glob("*.npy"), self.path / _ABOUT, self.path / _LOCK):
            note.unlink(missing_ok=True)
        self.path.rename(self.out)


@contextmanager
def partial_folder(out: Path, about: dict[str, str]) -> Iterator[PartialFolder]:
    """Raises ModelError while another process writes the same folder."""
    refuse_existing(out)
    folder = PartialFolder(out, about)
    folder.path.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelError(out, "folder", "is being written by another run", "Wait, or name another one.") from None
        yield folder
    finally:
        os.close(handle)


def refuse_existing(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise ModelError(out, "folder", "exists already", "Name another one, or remove it.")


def write_last(path: Path, text: str) -> None:
    """Writes a file that appears complete or not at all."""
    aside = path.with_suffix(".tmp")
    aside.write_text(text)
    aside.rename(path)
