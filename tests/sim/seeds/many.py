"""Runs many seeds in several processes and adds up what they have reached."""

import gc
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.sim.seeds.coverage import PATHS
from tests.sim.seeds.drawing import draw
from tests.sim.seeds.removals import removed
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.shrinking import shrink, tell
from tests.sim.seeds.story import PHASES

BAR = 40


@dataclass
class Summary:
    seeds: int = 0
    violations: list[str] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)  # seeds
    requests: int = 0
    errors: int = 0
    load_seconds: list[float] = field(default_factory=list)
    hits: dict[str, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in PHASES})
    reached: Counter[str] = field(default_factory=Counter)
    ways: Counter[str] = field(default_factory=Counter)

    def add(self, seed: int, outcome: RunOutcome) -> None:
        self.seeds += 1
        self.requests, self.errors = self.requests + outcome.requests, self.errors + outcome.errors
        self.load_seconds.append(outcome.load_seconds)
        self.reached.update(outcome.reached)
        self.ways.update(outcome.ways)
        for kind, phases in outcome.hits.items():
            self.hits[kind].update(phases)
        if outcome.violations:
            self.failed.append(seed)
            self.violations.append(f"seed {seed}: {outcome.violations[0]}")

    def report(self) -> dict[str, object]:
        hits = {
            kind: {phase: self.hits[kind][phase] for phase in dict.fromkeys((*phases, *sorted(self.hits[kind])))}
            for kind, phases in PHASES.items()
        }
        return {
            "seeds": self.seeds,
            "violations": len(self.violations),
            "failed": self.failed,
            "hits": hits,
            "reached": {path: self.reached[path] for path in PATHS},
            "fast_share": round(self.ways["fast"] / max(1, self.ways.total()), 3),
            "requests": self.requests,
            "errors": self.errors,
            "load_seconds_median": round(statistics.median(self.load_seconds or [0.0]), 1),
            "what": self.violations[:20],
        }


def run_seed(seed: int) -> RunOutcome:
    outcome = run_story(draw(seed))
    gc.collect(1)
    return outcome


def _numbered(seed: int) -> tuple[int, RunOutcome]:
    return seed, run_seed(seed)


def _numbered_without(given: tuple[str, int]) -> tuple[int, RunOutcome]:
    name, seed = given
    with removed(name) as rules:
        return seed, run_story(draw(seed), rules=rules)


def outcomes(seeds: Iterable[int], *, without: str = "", jobs: int = 0) -> Iterator[tuple[int, RunOutcome]]:
    """Each seed with its outcome, in order. `without`: name of a removal."""
    work = _numbered_without if without else _numbered
    given = [(without, seed) for seed in seeds] if without else list(seeds)
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from map(work, given)  # type: ignore[arg-type]
        return
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=200) as pool:
        yield from pool.imap(work, given)  # type: ignore[arg-type]


def run_many(first: int, count: int, *, jobs: int = 0) -> Summary:
    summary, began = Summary(), time.monotonic()
    for seed, outcome in outcomes(range(first, first + count), jobs=jobs):
        summary.add(seed, outcome)
        _bar(summary.seeds, count, f"{len(summary.failed)} failed, {time.monotonic() - began:.0f} s")
    _bar(count, count, "\n")
    return summary


def first_failing(name: str, first: int, count: int, *, jobs: int = 0) -> tuple[int | None, str]:
    """The first seed that fails without this protection, and how; None: none does."""
    done = 0
    found = outcomes(range(first, first + count), without=name, jobs=jobs)
    for seed, outcome in found:
        done += 1
        _bar(done, count, name)
        if outcome.violations:
            return seed, outcome.violations[0]
    return None, "not noticed"


def story_of(seed: int, *, without: str = "", seconds: float = 60.0) -> list[str]:
    """The shortest story that could be found for a failing seed."""
    if without:
        with removed(without) as rules:
            story = draw(seed)
            return tell(*shrink(story, run_story(story, rules=rules), rules=rules, seconds=seconds))
    story = draw(seed)
    return tell(*shrink(story, run_story(story), seconds=seconds))


def _bar(done: int, count: int, text: str) -> None:
    if sys.stderr.isatty() or text == "\n":
        filled = BAR * done // max(1, count)
        print(f"\r[{'#' * filled}{'.' * (BAR - filled)}] {done}/{count} {text}", end="", file=sys.stderr, flush=True)
