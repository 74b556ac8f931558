"""The packed file: one read-only file of tensors that every worker of a host maps.

It consists of a fixed preamble (magic, header length, header digest), a JSON header (what the file was made from, where
each tensor stands, digest of the body) and the tensors, each at a page boundary. A torn, cut or altered file is not
valid, and the worker that finds it builds it anew. The body is read in full only when the file has changed. The mapping
asks for large pages, because products read all of it in every step and small pages cost a tenth of the bandwidth."""

import json
import math
import mmap
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.model.digest import remembered

Array = NDArray[Any]
_MAGIC = b"BATONPK1"
_PREAMBLE = 8 + 8 + 32
_ALIGN = 4096
_LARGE_PAGE = 2 << 20
_POPULATE_READ = 22  # Linux 5.14; Python has no name for it yet


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor stands in the body."""

    dtype: str  # float32 | uint8
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def place(tensors: dict[str, tuple[str, tuple[int, ...]]]) -> tuple[dict[str, Slot], int]:
    """Places tensors one after the other; returns their slots and the size of the body."""
    slots: dict[str, Slot] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        slots[name] = Slot(dtype, shape, end)
        end = _aligned(end + slots[name].nbytes)
    return slots, end


class Writing:
    """A packed file that is being written. `finish` makes it appear under its name, complete and read-only."""

    def __init__(self, path: Path, about: dict[str, str], tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        self._path, self._aside, self._about = path, path.with_suffix(".tmp"), about
        self._slots, self._size = place(tensors)
        self._base = _aligned(_PREAMBLE + len(self._header("0" * 64)))
        self._aside.unlink(missing_ok=True)
        try:
            with self._aside.open("x+b") as file:
                # A full disk causes an error here. Without this line it would cause a signal later.
                os.posix_fallocate(file.fileno(), 0, self._base + self._size)
                self._data = mmap.mmap(file.fileno(), self._base + self._size)
        except OSError as error:
            self._aside.unlink(missing_ok=True)
            needed = f"{(self._base + self._size) >> 20} MiB could not be reserved ({error})"
            raise ModelError(path, "packed weights", needed, "Free disk space or choose another folder.") from None

    def tensor(self, name: str) -> Array:
        return _view(self._data, self._base, self._slots[name])

    def finish(self) -> None:
        with memoryview(self._data) as body:
            header = self._header(_digest(body[self._base :]))
            body[:_PREAMBLE] = _MAGIC + len(header).to_bytes(8, "little") + blake3(header).digest()
            body[_PREAMBLE : _PREAMBLE + len(header)] = header
        self._data.flush()
        self._aside.chmod(0o444)
        self._aside.rename(self._path)

    def _header(self, digest: str) -> bytes:
        tensors = {name: [slot.dtype, list(slot.shape), slot.offset] for name, slot in self._slots.items()}
        return json.dumps({"about": self._about, "digest": digest, "size": self._size, "tensors": tensors}).encode()


def open_packed(path: Path, about: dict[str, str]) -> dict[str, Array] | None:
    """Read-only views of all tensors, or None if there is no valid file that was made from exactly `about`."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, ValueError):  # an empty file cannot be mapped
        return None
    _ask_for_large_pages(data)
    header = _valid_header(data)
    if header is None or header["about"] != about:
        return None
    base = _aligned(_PREAMBLE + int.from_bytes(data[8:16], "little"))
    if len(data) != base + header["size"]:
        return None

    def read_anew() -> str:
        _drop_small_pages(path)
        with memoryview(data) as body:
            return _digest(body[base:])

    if remembered((path,), path.parent, "checked", read_anew) != header["digest"]:
        return None
    threading.Thread(target=_read_ahead, args=(data,), name="read-ahead", daemon=True).start()
    slots = {name: Slot(dtype, tuple(shape), offset) for name, (dtype, shape, offset) in header["tensors"].items()}
    return {name: _view(data, base, slot) for name, slot in slots.items()}


def _valid_header(data: mmap.mmap) -> dict[str, Any] | None:
    length = int.from_bytes(data[8:16], "little")
    if data[:8] != _MAGIC or len(data) < _PREAMBLE + length:
        return None
    raw = data[_PREAMBLE : _PREAMBLE + length]
    if blake3(raw).digest() != data[16:_PREAMBLE]:
        return None
    header: dict[str, Any] = json.loads(raw)
    return header


def _ask_for_large_pages(data: mmap.mmap) -> None:
    """From now on, reads through this mapping are cached in large pages, if kernel and file system can do that."""
    try:
        data.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without large pages: small ones will do
        return


def _drop_small_pages(path: Path) -> None:
    """Drops the file from the page cache. A file that was just written is cached in small pages until it is dropped."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_ahead(data: mmap.mmap) -> None:
    """Reads the file while the worker starts; otherwise the first step would wait for one page fault after the other.
    It reads in slices, because each call blocks the interpreter and because the kernel cuts long ranges short."""
    for offset in range(0, len(data), _LARGE_PAGE):
        length = min(_LARGE_PAGE, len(data) - offset)
        try:
            data.madvise(_POPULATE_READ, offset, length)
        except OSError:  # an older kernel
            data.madvise(mmap.MADV_WILLNEED, offset, length)


def _view(data: mmap.mmap, base: int, slot: Slot) -> Array:
    return np.frombuffer(data, slot.dtype, math.prod(slot.shape), base + slot.offset).reshape(slot.shape)


def _digest(body: memoryview) -> str:
    return blake3(body, max_threads=blake3.AUTO).hexdigest()


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
