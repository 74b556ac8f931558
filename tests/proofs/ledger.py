"""Keeps the results of proofs in one JSON file, written anew after each slice: a kill costs one slice at most.

An entry is about one hash of sources. When they have changed, the entry moves into its own history as soon as a slice
for the new sources ends; until then it counts as stale. Nothing is counted twice, because an entry holds the ranges of
numbers that are done."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.proofs.ranges import Range, merged, total

Json = dict[str, Any]
HISTORY_ENTRIES = 20  # entries kept of a proof; older ones are forgotten


@dataclass(slots=True)
class FailedSlice:
    """A slice that failed. `open` until the same numbers have passed."""

    first: int
    end: int
    failed: int  # how many of its numbers
    date: str
    story: str  # the last lines of the runner
    file: str = ""  # with more of them
    open: bool = True
    again: bool = False  # its numbers are to be tried once more


@dataclass(slots=True)
class ProofEntry:
    """A proof, as far as it has come for one hash of sources."""

    sources: str
    ranges: list[Range] = field(default_factory=list)  # passed
    failures: list[FailedSlice] = field(default_factory=list)
    figures: list[Json] = field(default_factory=list)  # figures of slices that are judged together
    progress: Json = field(default_factory=dict)  # progress of numbers that need several slices
    machines: dict[str, int] = field(default_factory=dict)  # kind of machine -> numbers that passed there
    seconds: float = 0.0
    date: str = ""
    problem: str = ""  # why all slices together do not prove it
    history: list[Json] = field(default_factory=list)  # amounts for earlier sources

    @property
    def done(self) -> int:
        return total(self.ranges)

    @property
    def failed(self) -> int:
        return sum(each.failed for each in self.failures if each.open) + bool(self.problem)

    @property
    def taken(self) -> list[Range]:
        """Numbers that no slice of these sources runs again."""
        return merged(
            [*self.ranges, *((each.first, each.end) for each in self.failures if each.open and not each.again)]
        )

    @property
    def machine(self) -> str:
        return ", ".join(sorted(self.machines, key=lambda kind: -self.machines[kind]))

    def passed(self, ranges: list[Range], *, machine: str, seconds: float, date: str) -> None:
        before = self.done
        self.ranges = merged([*self.ranges, *ranges])
        for failure in self.failures:
            if total([*self.ranges, (failure.first, failure.end)]) == self.done:
                failure.open = False
        self.machines[machine] = self.machines.get(machine, 0) + self.done - before
        self.seconds, self.date = self.seconds + seconds, date

    def fails(self, failure: FailedSlice) -> None:
        """It replaces earlier failures of the same numbers."""
        for each in self.failures:
            if failure.first <= each.first and each.end <= failure.end:
                each.open = False
        self.failures.append(failure)

    def retry(self) -> None:
        """Free the numbers that failed for other slices; a failure stays one until its numbers have passed."""
        for each in self.failures:
            each.again = each.open


@dataclass(slots=True)
class ProofLedger:
    path: Path
    wanted: Mapping[str, int]  # by proof
    entries: dict[str, ProofEntry] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)  # proof -> why this machine cannot run it

    @classmethod
    def load(cls, path: Path, wanted: Mapping[str, int]) -> "ProofLedger":
        found: Json = json.loads(path.read_text())["proofs"] if path.is_file() else {}
        return cls(path, wanted, {name: _entry(raw) for name, raw in found.items()})

    def entry(self, name: str, sources: str) -> ProofEntry:
        """The entry for these sources. One for other sources goes into the history."""
        old = self.entries.get(name)
        if old is None or old.sources != sources:
            self.entries[name] = ProofEntry(sources, history=history_of(old))
        return self.entries[name]

    def save(self) -> None:
        """All or nothing: a reader, and the next run after a kill, find the old file or the new one."""
        content = {"proofs": {name: self._row(name) for name in self.wanted if name in self.entries}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(f".{os.getpid()}.tmp")
        with new.open("w") as file:
            file.write(json.dumps(content, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def _row(self, name: str) -> Json:
        entry = self.entries[name]
        counts = {"wanted": self.wanted[name], "done": entry.done, "failed": entry.failed, "machine": entry.machine}
        return counts | asdict(entry)

    def report(self, hashes: Mapping[str, str]) -> Json:
        """Each proof for the present sources: what was done for others is stale and counts nothing."""
        return {name: self._report(name, hashes[name]) for name in self.wanted}

    def _report(self, name: str, sources: str) -> Json:
        entry = self.entries.get(name)
        stale = entry is not None and entry.sources != sources
        now = ProofEntry(sources) if entry is None or stale else entry
        row: Json = {"wanted": self.wanted[name], "done": now.done, "failed": now.failed, "stale": stale}
        row |= {"machine": now.machine, "sources": sources, "date": now.date, "problem": now.problem}
        row["failures"] = [asdict(each) for each in now.failures]
        row["earlier"] = history_of(entry)[-1] if entry and stale else None
        return row | {"cannot_run": self.unable.get(name, "")}


def history_of(entry: ProofEntry | None) -> list[Json]:
    if entry is None:
        return []
    now = {"sources": entry.sources, "done": entry.done, "failed": entry.failed, "machine": entry.machine}
    now |= {"date": entry.date, "failures": [asdict(each) for each in entry.failures[-3:]]}
    return [*entry.history, now][-HISTORY_ENTRIES:]


def _entry(raw: Json) -> ProofEntry:
    names: dict[str, Callable[[Any], Any]] = dict.fromkeys(ProofEntry.__slots__, lambda value: value)
    names["ranges"] = lambda value: [(first, end) for first, end in value]
    names["failures"] = lambda value: [FailedSlice(**each) for each in value]
    return ProofEntry(**{name: read(raw[name]) for name, read in names.items()})
