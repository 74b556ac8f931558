"""A long proof: how much it wants, the command of one slice, what its result depends on, and how a slice is judged.

Every proof counts numbers from 0: seeds, cases, minutes. A slice is a range of them, and the seed that it hands to its
runner follows from its first number, so that no two slices run the same cases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.proofs.ranges import Range, without

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProofSlice:
    """Numbers from `first` up to `end`, which one process tries."""

    first: int
    end: int

    @property
    def count(self) -> int:
        return self.end - self.first

    @property
    def range(self) -> Range:
        return self.first, self.end


@dataclass(frozen=True, slots=True)
class SliceVerdict:
    """The judgement of a slice. Numbers that it leaves out stay to be done."""

    passed: tuple[Range, ...] = ()
    failed: tuple[Range, ...] = ()
    failures: int = 0  # in the failed ranges; at least one where there is a range
    cannot_run: str = ""
    progress: Json | None = None  # progress of numbers that are begun


def whole(part: ProofSlice, status: int, report: Json) -> SliceVerdict:
    """All numbers of the slice pass, or the slice fails."""
    return SliceVerdict(passed=(part.range,)) if status == 0 else SliceVerdict(failed=(part.range,), failures=1)


def all_but(part: ProofSlice, failed: Sequence[int]) -> SliceVerdict:
    """These numbers fail, and the others pass."""
    ranges = tuple((number, number + 1) for number in sorted(failed))
    return SliceVerdict(passed=tuple(without(part.range, ranges)), failed=ranges, failures=len(ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    name: str
    wanted: int
    unit: str  # what its numbers count
    target: str  # the command that does the same at one go
    slice: int  # numbers of one slice
    least: int  # numbers of the smallest slice that is worth its start
    seconds: float  # about how long a slice takes, until one was measured
    command: Callable[[ProofSlice, Json], list[str]]  # command of a slice, given the progress so far
    covers: tuple[str, ...]  # files and folders on whose content the result depends
    verdict: Callable[[ProofSlice, int, Json], SliceVerdict] = whole  # by the exit status and the runner's JSON
    obstacle: Callable[[], str] = lambda: ""  # why this machine cannot run it
    figures: Callable[[Json], Json | None] = lambda report: None  # a slice's figures, to judge all together
    together: Callable[[Sequence[Json]], str] = lambda figures: ""  # why all slices together prove nothing

    @property
    def signature(self) -> str:
        """Changes when numbers mean other seeds or cases: then what was done does not count either."""
        return " ".join([self.name, *self.command(ProofSlice(0, 1), {})[1:]])
