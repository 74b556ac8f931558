"""The ledger of a run: which requests have their outcome in the files, and the only way in which one gets there.

Each custom_id stands once: in the output file or, if its request failed and there is one, in the file of errors."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.batches.ledger_file import LedgerFile
from gateway.batches.lines import digest
from gateway.batches.outcome import BatchOutcome
from gateway.batches.problems import BatchRefused, BatchStopped

SHOWN_STRANGERS = 3


class BatchLedger:
    def __init__(self, output: LedgerFile, errors: LedgerFile | None) -> None:
        self._output, self._errors = output, errors
        self._done = set[bytes]()
        self.found = 0  # requests of the input that had their outcome before this run
        self.failed = 0  # requests among these that failed
        self.torn_bytes = 0

    def has(self, key: bytes) -> bool:
        """Whether the request with this digest of its custom_id has its outcome."""
        return key in self._done

    def write(self, outcome: BatchOutcome) -> None:
        """Append the outcome; BatchStopped if that cannot be."""
        file = self._errors if outcome.failed and self._errors is not None else self._output
        file.append(outcome.line())
        self._done.add(digest(outcome.custom_id))

    def sync(self) -> None:
        """Wait until the disk has all lines; BatchStopped if that cannot be, and if a file is not where it was."""
        for file in (self._output, self._errors):
            if file is not None:
                file.sync()
                if not file.is_there:
                    raise BatchStopped(
                        f"{file.path} was moved or removed during the run, and its outcomes went with it; put the file "
                        "back, and run the same command again"
                    )

    def take_up(self, known: Collection[bytes] | None, *, force: bool) -> None:
        """Read what the files hold, and cut torn lines off. `known`: digests of the input's custom_ids; BatchRefused
        where the files hold others, unless forced. None: the input is gone, and whatever they hold is its own."""
        strangers, count = list[str](), 0
        files = [file for file in (self._output, self._errors) if file is not None]
        for file in files:
            for custom_id, failed in file.outcomes():
                key = digest(custom_id)
                if key in self._done:
                    raise BatchRefused(
                        f"{file.path}: custom_id {custom_id[:60]!r} stands there a second time; remove one of the lines"
                    )
                self._done.add(key)
                if known is None or key in known:
                    self.found += 1
                    self.failed += failed
                    continue
                count += 1
                strangers += [repr(custom_id[:60])] if len(strangers) < SHOWN_STRANGERS else []
        if count and not force:
            names = ", ".join(strangers) + (", …" if count > len(strangers) else "")
            raise BatchRefused(
                f"{' and '.join(str(file.path) for file in files)}: outcomes of {count} requests that the input lacks "
                f"({names}) stand there, so another input made them; name another output file, or add --force to append"
            )
        self.torn_bytes = sum(file.cut() for file in files)


@contextmanager
def opened_ledger(input_path: Path, output: Path, errors: Path | None) -> Iterator[BatchLedger]:
    """The files of a run, open for it alone. BatchRefused where two of the three are one file."""
    files = [("the input", input_path), ("the output", output), *([("--errors", errors)] if errors else [])]
    for index, (name, path) in enumerate(files):
        for other_name, other in files[:index]:
            if same_file(path, other):
                raise BatchRefused(f"{name} and {other_name} are the same file, {path}; name another one")
    opened = list[LedgerFile]()
    try:
        for path in [output, *([errors] if errors else [])]:
            opened.append(LedgerFile(path))
        yield BatchLedger(opened[0], opened[1] if errors else None)
    finally:
        for file in opened:
            file.close()


def same_file(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:  # one of them does not exist yet
        return os.path.realpath(one) == os.path.realpath(other)
