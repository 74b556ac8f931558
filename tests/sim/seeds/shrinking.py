"""Makes a failing story short: faults and requests are left out as long as the same kind of violation remains."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from mesh.rules import RULES, Rules
from tests.sim.seeds.run import RunOutcome, run_story
from tests.sim.seeds.story import Story

T = TypeVar("T")


def shrink(
    story: Story, outcome: RunOutcome, *, rules: Rules = RULES, seconds: float = 60.0
) -> tuple[Story, RunOutcome]:
    """A story with as few faults and requests as could be found in this time, and its outcome."""
    kind, until = kind_of(outcome), time.monotonic() + seconds
    best = outcome

    def fails(candidate: Story) -> bool:
        nonlocal best
        if time.monotonic() > until:
            return False
        found = run_story(candidate, rules=rules)
        if found.violations and kind_of(found) == kind:
            best = found
            return True
        return False

    for _ in range(2):
        story = _with_fewest(story, fails)
    return story, best


def _with_fewest(story: Story, fails: Callable[[Story], bool]) -> Story:
    faults = fewest(story.faults, lambda some: fails(replace(story, faults=tuple(some))))
    shorter = replace(story, faults=tuple(faults))
    demands = fewest(story.demands, lambda some: fails(replace(shorter, demands=tuple(some))))
    return replace(shorter, demands=tuple(demands))


def fewest(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> Sequence[T]:
    """Delta debugging: leave out parts, halves first, as long as the rest still fails."""
    parts = 2
    while items:
        size = -(-len(items) // parts)
        for first in range(0, len(items), size):
            rest = [*items[:first], *items[first + size :]]
            if fails(rest):
                items, parts = rest, max(2, parts - 1)
                break
        else:
            if size <= 1:
                break
            parts = min(len(items), 2 * parts)
    return items


def kind_of(outcome: RunOutcome) -> str:
    """The first violation without its numbers."""
    return re.sub(r"[0-9a-f]*[0-9][0-9a-f.]*", "#", outcome.violations[0])[:60] if outcome.violations else ""


def tell(story: Story, outcome: RunOutcome) -> list[str]:
    """The story as lines of text."""
    lines = [str(story.world)]
    for demand in story.demands:
        limit = "" if demand.deadline_seconds is None else f", deadline {demand.deadline_seconds:.3g} s"
        size = f"{len(demand.prompt)} prompt tokens, at most {demand.sampling.max_tokens} more{limit}"
        lines.append(f"{demand.at:7.2f} s request at gateway{demand.gateway}: {size}")
    lines += [str(fault) for fault in story.faults]
    return lines + [f"=> {violation}" for violation in outcome.violations[:3]]
