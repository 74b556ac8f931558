"""`python -m tests.protocol`: explore every small configuration with all protections, then show for each protection
that its removal is found.

    python -m tests.protocol --list             protections and configurations
    python -m tests.protocol --only TEXT        only configurations whose name contains TEXT, no removals
    python -m tests.protocol --remove NAME      explore without one protection, until a violation is found
    python -m tests.protocol --deep             the larger configurations
    python -m tests.protocol --walk SECONDS     random runs through worlds too large to explore
    python -m tests.protocol --trace FOLDER     check the message logs below a folder against the model"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.protocol.configurations import DEEP, SMALL, WALKS, Configuration
from tests.protocol.explore import Exploration, explore, walk
from tests.protocol.protections import PROTECTIONS, demonstration
from tests.protocol.traces.checking import check_folder


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.protocol", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--remove", choices=list(PROTECTIONS), metavar="NAME", help="remove one protection")
    parser.add_argument("--only", default="", metavar="TEXT", help="only configurations whose name contains TEXT")
    parser.add_argument("--deep", action="store_true", help="explore the larger configurations")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop each configuration after so long")
    parser.add_argument("--walk", type=float, default=0, metavar="SECONDS", help="random runs for so long")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first random run")
    parser.add_argument("--trace", type=Path, metavar="FOLDER", help="check message logs (setting message_log)")
    parser.add_argument("--calm", action="store_true", help="with --trace: a run without faults is fine")
    parser.add_argument("--list", action="store_true", help="list protections and configurations")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    return parser.parse_args()


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(what: Configuration, result: Exploration, seconds: float) -> None:
    verdict = result.violation or ("no violation" if result.complete else "no violation so far, not finished")
    note(f"{what.name:46} {what.transport:5} {result.states:8} states {seconds:6.1f} s  {verdict}")


def explore_all(configurations: Iterable[Configuration], removed: frozenset[str], seconds: float) -> dict[str, object]:
    """Explores one after the other, up to the first violation."""
    states, explored, unfinished = 0, 0, 0
    for configuration in configurations:
        began = time.monotonic()
        result = explore(configuration, removed, seconds=seconds)
        show(configuration, result, time.monotonic() - began)
        states, explored, unfinished = states + result.states, explored + 1, unfinished + (not result.complete)
        if result.violation:
            for number, label in enumerate(result.trace, 1):
                note(f"    {number:2} {' '.join(map(str, label))}")
            return {"configurations": explored, "states": states, "violations": 1, "what": result.violation}
    return {"configurations": explored, "states": states, "violations": 0, "unfinished": unfinished}


def remove_each() -> dict[str, object]:
    """Each protection that a small world needs is removed in that world: the violation must be found."""
    found, missed = 0, list[str]()
    for name in PROTECTIONS:
        if (configuration := demonstration(name)) is None:
            continue
        result = explore(configuration, frozenset({name}))
        note(f"without {name:14} {configuration.name}, {configuration.transport}: {result.violation or 'NOT FOUND'}")
        found += bool(result.violation)
        missed += [] if result.violation else [name]
    return {"removals": found, "removals_missed": missed}


def walks(seconds: float, seed: int, removed: frozenset[str]) -> dict[str, object]:
    runs, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        configuration = WALKS[runs % len(WALKS)]
        result = walk(configuration, seed + runs, removed)
        runs += 1
        if result.violation:
            note(f"run {seed + runs - 1}, {configuration.name}, {configuration.transport}: {result.violation}")
            for number, label in enumerate(result.trace, 1):
                note(f"    {number:2} {' '.join(map(str, label))}")
            return {"runs": runs, "violations": 1, "what": result.violation}
    note(f"{runs} random runs, no violation")
    return {"runs": runs, "violations": 0}


def trace(folder: Path, *, calm: bool) -> dict[str, object]:
    report = check_folder(folder)
    if (missing := report.missing()) and not (calm and report.events):
        report.problems.append(missing)
    for problem in report.problems:
        note(problem)
    note(report.text())
    return {"violations": len(report.problems), "requests": report.requests, "events": report.events}


def main() -> int:
    given = arguments()
    gc.disable()  # nothing here is cyclic
    if given.list:
        for name, protection in PROTECTIONS.items():
            print(f"{name:14} {protection.removed}")
        for configuration in SMALL + DEEP:
            print(configuration)
        return 0
    removed = frozenset({given.remove} if given.remove else ())
    if given.trace is not None:
        report = trace(given.trace, calm=given.calm)
    elif given.walk:
        report = walks(given.walk, given.seed, removed)
    else:
        chosen = [c for c in (DEEP if given.deep else SMALL) if given.only in c.name]
        report = explore_all(chosen, removed, given.seconds)
        if not (given.deep or given.only or given.remove):
            report |= remove_each()
    if given.json:
        print(json.dumps(report))
    return bool(report["violations"] or report.get("removals_missed"))


if __name__ == "__main__":
    sys.exit(main())
