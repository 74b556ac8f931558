"""The input file: checked as a whole before anything runs, then read a second time, request by request.

Between the two readings only the digests of the custom_ids are held, so a file may be larger than the memory."""

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gateway.batches.lines import BatchLine, LineFault, digest, read_line
from gateway.batches.problems import BatchRefused, BatchStopped

MOST_LINE_BYTES = 32 << 20  # what a gateway takes as a body (gateway.body_mib)
MOST_FAULTS = 20  # faulty lines that are listed
_BOM = b"\xef\xbb\xbf"  # programs of Windows begin a file with it


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A file in which every line is a request, and no custom_id stands twice."""

    path: Path
    numbers: dict[bytes, int]  # digest of a custom_id -> number of its line
    most_line_bytes: int = MOST_LINE_BYTES

    @classmethod
    def checked(cls, path: Path, most_line_bytes: int = MOST_LINE_BYTES, *, url: str = "") -> "BatchInput":
        """BatchRefused with the faulty lines, if there are any. `url`: that every line must have; empty: any."""
        numbers, listed, faulty = dict[bytes, int](), list[LineFault](), 0
        with _opened(path) as file:
            for number, raw in _lines(file, most_line_bytes):
                faults = _faults(raw, number, numbers, most_line_bytes, url)
                faulty += bool(faults)
                listed += faults if faulty <= MOST_FAULTS else []
        if faulty:
            raise BatchRefused(_listing(path, listed, faulty), listed)
        if not numbers:
            raise BatchRefused(f"{path} holds no request; write one JSON object on each line (docs/batch.md)")
        return cls(path, numbers, most_line_bytes)

    def requests(self, skipped: Callable[[bytes], bool]) -> Iterator[BatchLine]:
        """The requests whose custom_id's digest is not skipped, in their order. BatchStopped where the file is not the
        one that was checked."""
        with _opened(self.path) as file:
            for number, raw in _lines(file, self.most_line_bytes):
                line, _ = (None, []) if raw is None else read_line(raw, number)
                if line is None or self.numbers.get(key := digest(line.custom_id)) != number:
                    raise BatchStopped(
                        f"{self.path} was changed during the run (line {number}); leave it as it is until the run "
                        "ends, and run the same command again"
                    )
                if not skipped(key):
                    yield line


def _faults(raw: bytes | None, number: int, numbers: dict[bytes, int], most_bytes: int, url: str) -> list[LineFault]:
    """The faults of one line, a custom_id of an earlier line included; a line without any is noted in `numbers`."""
    if raw is None:
        limit = f"{most_bytes >> 20} MiB" if most_bytes >> 20 else f"{most_bytes} bytes"
        return [LineFault(number, "", f"it is longer than {limit}, which a gateway refuses; shorten it")]
    line, faults = read_line(raw, number)
    if line is None:
        return faults
    if url and line.url != url:
        return [LineFault(number, "url", f"it is {line.url!r}, and the batch is one of {url}; write {url!r}")]
    first = numbers.setdefault(digest(line.custom_id), number)
    if first != number:
        shown = repr(line.custom_id[:60])
        return [LineFault(number, "custom_id", f"{shown} is that of line {first}, too; give each request its own")]
    return []


def _lines(file: BinaryIO, most_bytes: int) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers; None instead of one that is too long."""
    number = 0
    while raw := file.readline(most_bytes + 1):
        number += 1
        if len(raw) > most_bytes and not raw.endswith(b"\n"):
            while (rest := file.readline(most_bytes)) and not rest.endswith(b"\n"):
                pass
            yield number, None
            continue
        if number == 1:
            raw = raw.removeprefix(_BOM)
        if raw.strip():
            yield number, raw


def _opened(path: Path) -> BinaryIO:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
            raise BatchRefused(f"{path} is no regular file; it is read twice, so write the requests into a file")
        return path.open("rb")
    except OSError as error:
        raise BatchRefused(f"{path} cannot be read: {error.strerror}") from None


def _listing(path: Path, listed: list[LineFault], faulty: int) -> str:
    more = f"\n  … and {faulty - MOST_FAULTS} more" if faulty > MOST_FAULTS else ""
    what = "1 line is" if faulty == 1 else f"{faulty} lines are"
    faults = "\n".join(f"  {fault}" for fault in listed)
    return f"{path}: {what} no request of a batch, so nothing ran. Correct the file:\n{faults}{more}"
