"""Runs slices, one after the other, until time is up or nothing is missing.

The proof whose done share is smallest comes next, so that a bounded run advances all. A slice that would not end within
the rest of the time is made smaller, down to the proof's least; then another proof takes the rest."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.proofs.ledger import FailedSlice, ProofLedger
from tests.proofs.proof import Proof, ProofSlice, SliceVerdict
from tests.proofs.ranges import Range, first_gap, total
from tests.proofs.running import Runner, SliceRun, keep_log

LONGEST_SLICE_SECONDS = 600.0
MARGIN = 1.25  # a slice may take this much longer than those before it


@dataclass(slots=True)
class Rounds:
    proofs: Mapping[str, Proof]
    hashes: Mapping[str, str]
    ledger: ProofLedger
    runner: Runner
    now: Callable[[], float]  # seconds
    date: Callable[[], str]
    machine: str
    failures: Path  # folder of the logs of failed slices
    say: Callable[[str], None] = lambda text: None
    sources_now: Callable[[Proof], str] | None = None  # hashes anew, behind each slice
    _pace: dict[str, tuple[int, float]] = field(default_factory=dict)  # numbers and seconds of this run's slices
    _begun: dict[str, list[Range]] = field(default_factory=dict)  # numbers of this run's slices that left some undone

    def run(self, seconds: float) -> int:
        """The number of slices that ended within these seconds."""
        end, slices = self.now() + seconds, 0
        for name, proof in self.proofs.items():
            if why := proof.obstacle():
                self._cannot_run(name, why)
        while (chosen := self.choose(end - self.now())) is not None:
            proof, part = chosen
            slices += self._slice(proof, part, min(LONGEST_SLICE_SECONDS, end - self.now()))
        left = [each for each in self.proofs.values() if first_gap(self._taken(each), each.wanted, 1)]
        if waiting := [each.name for each in left if each.name not in self.ledger.unable]:
            self.say(f"no slice of {', '.join(waiting)} fits into {max(0.0, end - self.now()):.0f} s")
        return slices

    def choose(self, left: float) -> tuple[Proof, ProofSlice] | None:
        """The next slice that ends within the time that is left; None: there is none."""
        missing = [proof for name, proof in self.proofs.items() if name not in self.ledger.unable]
        for proof in sorted(missing, key=self.share):
            gap = self._gap(proof, min(proof.slice, self._fitting(proof, left)))
            if gap is not None and gap[1] > gap[0]:
                return proof, ProofSlice(*gap)
        return None

    def share(self, proof: Proof) -> float:
        """How far it has come. Numbers that are begun count too: what is hard to finish takes no turn of the others."""
        return total([*self._taken(proof), *self._begun.get(proof.name, [])]) / proof.wanted

    def _gap(self, proof: Proof, most: int) -> Range | None:
        """The next numbers of it: those that are begun come when no others are left."""
        taken = self._taken(proof)
        if gap := first_gap([*taken, *self._begun.get(proof.name, [])], proof.wanted, most):
            return gap
        self._begun[proof.name] = []
        return first_gap(taken, proof.wanted, most)

    def _taken(self, proof: Proof) -> list[tuple[int, int]]:
        entry = self.ledger.entries.get(proof.name)
        return entry.taken if entry is not None and entry.sources == self.hashes[proof.name] else []

    def _fitting(self, proof: Proof, left: float) -> int:
        """How many numbers fit into the rest of the time; 0: fewer than are worth it."""
        count, seconds = self._pace.get(proof.name, (proof.slice, proof.seconds))
        fitting = int(min(left, LONGEST_SLICE_SECONDS) / MARGIN / (seconds / count))
        return fitting if fitting >= min(proof.slice, proof.least) else 0

    def _slice(self, proof: Proof, part: ProofSlice, seconds: float) -> bool:
        """Run it and keep what it has shown. False when that is nothing."""
        entry = self.ledger.entries.get(proof.name)
        fresh = entry is not None and entry.sources == self.hashes[proof.name]
        command = proof.command(part, dict(entry.progress) if entry is not None and fresh else {})
        self.say(f"{proof.name} {part.first} to {part.end} of {proof.wanted} {proof.unit}")
        run = self.runner(command, seconds)
        if run.cut:
            self.say(f"{proof.name}: cut after {run.seconds:.0f} s, it counts nothing")
            self._pace[proof.name] = part.count, run.seconds * MARGIN
            return False
        if self.sources_now is not None and self.sources_now(proof) != self.hashes[proof.name]:
            self._cannot_run(proof.name, "the sources changed while the slice ran: it counts nothing")
            return False
        verdict = proof.verdict(part, run.status, run.report)
        if verdict.cannot_run:
            self._cannot_run(proof.name, verdict.cannot_run)
            return False
        self._pace[proof.name] = max(1, total(verdict.passed) or part.count), run.seconds
        self._keep(proof, part, command, run, verdict)
        return True

    def _keep(self, proof: Proof, part: ProofSlice, command: list[str], run: SliceRun, verdict: SliceVerdict) -> None:
        entry = self.ledger.entry(proof.name, self.hashes[proof.name])
        entry.passed(list(verdict.passed), machine=self.machine, seconds=run.seconds, date=self.date())
        if verdict.progress is not None:
            entry.progress |= verdict.progress
            self._begun.setdefault(proof.name, []).extend(map(_alone, verdict.progress))
        if verdict.failed:
            log = keep_log(self.failures, f"{proof.name}-{entry.sources}-{part.first}-{part.end}", run, command)
            self.say(f"{proof.name}: {verdict.failures} failed, see {log}\n{run.story}")
            for place, (first, end) in enumerate(verdict.failed):
                failures = verdict.failures - len(verdict.failed) + 1 if place == 0 else 1
                entry.fails(FailedSlice(first, end, failures, self.date(), run.story, log.name))
        elif (figures := proof.figures(run.report)) is not None:
            entry.figures.append(figures)
        entry.problem = proof.together(entry.figures) if entry.figures else ""
        self.ledger.save()

    def _cannot_run(self, name: str, why: str) -> None:
        self.ledger.unable[name] = why
        self.say(f"{name}: cannot run here: {why}")


def _alone(number: str) -> Range:
    return int(number), int(number) + 1
