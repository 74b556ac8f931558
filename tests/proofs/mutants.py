"""`python -m tests.proofs.mutants --first I --count N --json`: what must be noticed, one removed protection at a time.

The mutants are numbered: first those of the simulation, which some seed must notice, then those of the protocol's
model, whose exploration must find a violation. A run ends after `--seconds`; the result says which mutants are judged,
and how many seeds each of the others has survived (with `--tried` it begins behind these)."""

import argparse
import gc
import json
import sys
import time
from collections.abc import Mapping

from tests.protocol.explore import explore
from tests.protocol.protections import PROTECTIONS, demonstration
from tests.sim.__main__ import MOST_RUNS
from tests.sim.seeds.many import outcomes
from tests.sim.seeds.removals import REMOVALS

SECONDS = 120.0
PARTS = 3  # parts of a run's time; a mutant takes one at most
SIMULATED = tuple(REMOVALS)
MODELLED = tuple(name for name in PROTECTIONS if demonstration(name) is not None)
NAMES = tuple(f"sim: {name}" for name in SIMULATED) + tuple(f"model: {name}" for name in MODELLED)


def simulate(name: str, tried: int, end: float) -> tuple[bool | None, int]:
    """Whether a seed notices the removal, None when time is up first, and how many seeds were tried."""
    for seed, outcome in outcomes(range(tried, MOST_RUNS), without=name):
        if outcome.violations:
            note(f"without {name}: seed {seed}: {outcome.violations[0]}")
            return True, seed + 1
        if time.monotonic() > end and seed + 1 < MOST_RUNS:
            return None, seed + 1
    note(f"without {name}: none of {MOST_RUNS} seeds notices it")
    return False, MOST_RUNS


def model(name: str) -> bool:
    configuration = demonstration(name)
    assert configuration is not None
    result = explore(configuration, frozenset({name}))
    note(f"without {name}: {configuration.name}, {configuration.transport}: {result.violation or 'NOT FOUND'}")
    return bool(result.violation)


def judge(first: int, count: int, *, tried: Mapping[int, int], seconds: float = SECONDS) -> dict[str, object]:
    """No mutant takes more than its part of the time, so that one that many seeds survive keeps no other waiting."""
    end, judged, missed, begun = time.monotonic() + seconds, list[int](), list[int](), dict[int, int]()
    for number in range(first, first + count):
        now = time.monotonic()
        if number > first and now > end:
            break
        if number < len(SIMULATED):
            found, begun[number] = simulate(SIMULATED[number], tried.get(number, 0), now + seconds / PARTS)
        else:
            found = model(MODELLED[number - len(SIMULATED)])
        if found is not None:
            judged.append(number)
            begun.pop(number, None)
        missed += [number] if found is False else []
    return {"judged": judged, "missed": missed, "tried": begun}


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.mutants", description=__doc__)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--count", type=int, default=len(NAMES), help="how many mutants")
    parser.add_argument("--tried", default="{}", help="seeds that mutants have survived before, by number, as JSON")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="begin no further mutant, or seed, after so long"
    )
    parser.add_argument("--list", action="store_true", help="list the mutants")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    if given.list:
        print(*(f"{number:3} {name}" for number, name in enumerate(NAMES)), sep="\n")
        return 0
    gc.freeze()
    tried = {int(number): int(seeds) for number, seeds in json.loads(given.tried).items()}
    report = judge(given.first, min(given.count, len(NAMES) - given.first), tried=tried, seconds=given.seconds)
    if given.json:
        print(json.dumps(report))
    return bool(report["missed"])


if __name__ == "__main__":
    sys.exit(main())
