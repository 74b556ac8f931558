"""`python -m tests.sim --seeds N --first S [--remove-each] --json`: simulate meshes under faults.

python -m tests.sim --seeds 200              200 seeds; a failing one is shrunk to a short story
python -m tests.sim --story 7                run seed 7 and tell its story, shrunk if it fails
python -m tests.sim --remove-each            remove each protection until a seed fails, at most 2,000
python -m tests.sim --remove NAME            the same for one protection
python -m tests.sim --list                   the protections that can be removed"""

import argparse
import json
import sys
import time

from tests.sim.seeds.drawing import draw
from tests.sim.seeds.many import first_failing, run_many, story_of
from tests.sim.seeds.removals import REMOVALS
from tests.sim.seeds.run import run_story
from tests.sim.seeds.shrinking import tell

MOST_RUNS = 2000  # seeds that are tried for each removal
LEAST_FAST_SHARE = 0.5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=0, help="processes that work at once; 0: one for each core")
    parser.add_argument("--remove-each", action="store_true", help="show for each protection that a seed fails without")
    parser.add_argument("--remove", choices=list(REMOVALS), metavar="NAME", help="the same for one protection")
    parser.add_argument("--story", type=int, metavar="SEED", help="tell the story of one seed")
    parser.add_argument("--shrink", type=float, default=60.0, metavar="SECONDS", help="longest time to shrink a story")
    parser.add_argument("--list", action="store_true", help="list the protections")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    return parser.parse_args()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def remove(names: list[str], first: int, jobs: int) -> dict[str, int | None]:
    found = dict[str, int | None]()
    for name in names:
        began = time.monotonic()
        found[name], how = first_failing(name, first, MOST_RUNS, jobs=jobs)
        note(f"\rwithout {name:28} seed {found[name]}, {time.monotonic() - began:.0f} s: {how}")
    return found


def table(hits: dict[str, dict[str, int]]) -> None:
    for fault, phases in hits.items():
        note(f"  {fault:15} " + "  ".join(f"{phase} {count}" for phase, count in phases.items()))


def main() -> int:
    given = arguments()
    if given.list:
        for name, removal in REMOVALS.items():
            print(f"{name:28} {removal.what}")
        return 0
    if given.story is not None:
        story = draw(given.story)
        outcome = run_story(story)
        lines = story_of(given.story, seconds=given.shrink) if outcome.violations else tell(story, outcome)
        print("\n".join(lines))
        return bool(outcome.violations)
    removals = [given.remove] if given.remove else list(REMOVALS) if given.remove_each else []
    began, report = time.monotonic(), dict[str, object]()
    if not given.remove:
        summary = run_many(given.first, given.seeds, jobs=given.jobs)
        report = summary.report()
        note(f"{given.seeds} seeds, {summary.requests} requests, {len(summary.violations)} violations")
        table(report["hits"])  # type: ignore[arg-type]
        for path, count in report["reached"].items():  # type: ignore[attr-defined]
            note(f"  {count:8} {path}")
        share = report["fast_share"]
        note(f"  {share:8} share of tokens that left a gateway at once, past their reader")
        if share < LEAST_FAST_SHARE:  # type: ignore[operator]
            note(f"fewer than {LEAST_FAST_SHARE:.0%} of the tokens took the way that most tokens take in production")
        for what in summary.violations[:20]:
            note(what)
        if summary.failed:
            note("\n".join(story_of(summary.failed[0], seconds=given.shrink)))
    removed = remove(removals, given.first, given.jobs)
    missed = [name for name, seed in removed.items() if seed is None]
    report |= {"removed": removed, "missed": missed, "seconds": round(time.monotonic() - began, 1)}
    if given.json:
        print(json.dumps(report))
    return bool(report.get("violations") or missed)


if __name__ == "__main__":
    sys.exit(main())
