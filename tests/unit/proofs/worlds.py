"""Proofs with runners that are made up, and a clock that only they move."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.proofs.ledger import ProofLedger
from tests.proofs.proof import Json, Proof, ProofSlice, all_but, whole
from tests.proofs.ranges import Range
from tests.proofs.rounds import Rounds
from tests.proofs.running import SliceRun


def proof(name: str = "seeds", *, wanted: int = 100, slice: int = 10, least: int = 5, **other: object) -> Proof:
    made: dict[str, object] = {
        "unit": "seeds",
        "target": "make sim",
        "seconds": 60.0,
        "command": lambda part, progress: [name, str(part.first), str(part.count)],
        "covers": ("room",),
        "verdict": lambda part, status, report: (
            all_but(part, report["failed"]) if report.get("failed") else whole(part, status, report)
        ),
    }
    return Proof(name=name, wanted=wanted, slice=slice, least=least, **(made | other))  # type: ignore[arg-type]


@dataclass
class ProofWorld:
    """Runs slices at six seconds a number."""

    folder: Path
    proofs: dict[str, Proof]
    hashes: dict[str, str] = field(default_factory=dict)
    time: float = 0.0
    pace: float = 6.0
    ran: list[tuple[str, Range]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    answer: Callable[[str, ProofSlice], Json] = lambda name, part: {}
    kill_at: int = 10**9  # the slice in which this process dies
    machine: str = "a machine"

    def run_slice(self, command: Sequence[str], seconds: float) -> SliceRun:
        name, part = command[0], ProofSlice(int(command[1]), int(command[1]) + int(command[2]))
        if len(self.ran) == self.kill_at:
            raise KeyboardInterrupt
        self.ran.append((name, part.range))
        took = min(seconds, part.count * self.pace)
        self.time += took
        if part.count * self.pace > seconds:
            return SliceRun(-15, cut=True, seconds=took)
        report = self.answer(name, part)
        return SliceRun(int(report.get("status", bool(report.get("failed")))), report, "its last words", seconds=took)

    @property
    def ledger(self) -> ProofLedger:
        return ProofLedger.load(self.folder / "proofs.json", {name: each.wanted for name, each in self.proofs.items()})

    def rounds(self, ledger: ProofLedger | None = None) -> Rounds:
        hashes = dict.fromkeys(self.proofs, "these sources") | self.hashes
        return Rounds(
            *(self.proofs, hashes, ledger or self.ledger, self.run_slice, lambda: self.time, lambda: "2026-01-02"),
            *(self.machine, self.folder / "failures", self.said.append),
        )

    def report(self, name: str = "seeds") -> Json:
        row: Json = self.ledger.report(dict.fromkeys(self.proofs, "these sources") | self.hashes)[name]
        return row


def world(folder: Path, *proofs: Proof) -> ProofWorld:
    return ProofWorld(folder, {each.name: each for each in proofs or (proof(),)})
