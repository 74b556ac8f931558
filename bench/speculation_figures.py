"""The figures of `bench.speculation`, and the script that stands in for a trained draft model. All functions are pure.

A run counts decode only: prompts are computed before its clock starts. Two runs are compared only when they stood next
to each other, since a shared machine changes its speed within seconds."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.command import missed
from bench.spread import Spread

TARGETS = {"builtin_speedup_b1": 1.3, "scripted_speedup_b1": 1.8, "speedup_b32": 0.97}

Texts = tuple[tuple[tuple[int, bytes], ...], ...]  # per request: tokens, each with its logprob's bits


@dataclass(frozen=True, slots=True)
class Run:
    seconds: float  # duration of decode
    texts: Texts
    steps: int
    proposed: int = 0  # drafts that were verified
    accepted: int = 0
    looked_at: int = 0  # drafts up to and including each step's first refused one

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens - len(self.texts)) / self.seconds  # each request's first token is prefill's


@dataclass(frozen=True, slots=True)
class Point:
    """One comparison: pairs of a run without drafts and a run with drafts."""

    name: str
    pairs: tuple[tuple[Run, Run], ...]

    @property
    def speedup(self) -> Spread:
        plain, drafted = zip(*self.pairs, strict=True)
        return Spread.ratio([run.tokens_per_second for run in drafted], [run.tokens_per_second for run in plain])

    @property
    def identical(self) -> bool:
        return len({run.texts for pair in self.pairs for run in pair}) == 1

    @property
    def acceptance(self) -> float:
        """Share of the verified drafts that were accepted."""
        return _share([(drafted.accepted, drafted.proposed) for _, drafted in self.pairs])


def acceptance(run: Run) -> float:
    return _share([(run.accepted, run.proposed)])


def chance(run: Run) -> float:
    """Chance that a draft is accepted when all drafts before it were; a script with this chance is accepted as
    often."""
    return _share([(run.accepted, run.looked_at)])


def scripted(truth: Sequence[int], chance: float, *, seed: int, vocab: int) -> tuple[int, ...]:
    """Drafts for each position: the model's own token with this chance, otherwise another one."""
    draw = random.Random(seed)
    return tuple(token if draw.random() < chance else (token + 1) % vocab for token in truth)


def misses(report: dict[str, Any]) -> list[str]:
    """A line for each target that was measured and missed."""
    lines = [] if report["identical"] else ["identical: a text differs with and without drafts"]
    return lines + missed(report, least={name: least for name, least in TARGETS.items() if name in report})


def _share(parts: Sequence[tuple[int, int]]) -> float:
    whole = sum(count for _, count in parts)
    return sum(part for part, _ in parts) / whole if whole else 0.0
