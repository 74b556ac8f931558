"""`python -m tests.fuzz --cases N --json`: random cases for the SSE framer, the tool parsers and the templates.

No case may raise anything but an error that names a field, and none may take longer than a tenth of a second. A failure
is printed with the seed that repeats it: `--target NAME --seed SEED --cases 1`. `make fuzz` runs a million cases."""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from random import Random

from tests.fuzz.targets import SHARES, TARGETS

SLOW_SECONDS = 0.1
SLICE = 2000  # cases that one task runs
SHOWN = 5  # failures of a target that are printed


@dataclass(frozen=True)
class Slice:
    target: str
    seed: int  # of the first case; the next ones count up
    cases: int


def run(part: Slice) -> list[str]:
    """The failures of a slice. A slow case runs again, because the machine may have paused."""
    failures: list[str] = []
    target = TARGETS[part.target]
    target(Random(0))  # loads what the first case would load
    for seed in range(part.seed, part.seed + part.cases):
        try:
            best = _seconds(part.target, seed)
            if best > SLOW_SECONDS:
                best = min(_seconds(part.target, seed) for _ in range(3))
            if best > SLOW_SECONDS:
                failures.append(f"--target {part.target} --seed {seed}: took {best:.2f} s")
        except Exception as error:
            failures.append(f"--target {part.target} --seed {seed}: {type(error).__name__}: {error}"[:500])
    return failures


def fuzz(parts: list[Slice], workers: int) -> Iterator[tuple[Slice, list[str]]]:
    if workers == 1:
        yield from ((part, run(part)) for part in parts)
        return
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(run, part): part for part in parts}
        for done in as_completed(running):
            yield running[done], done.result()


def slices(cases: int, seed: int, targets: list[str]) -> list[Slice]:
    """The cases of each target by its share; the last target takes what is left."""
    found: list[Slice] = []
    total, left = sum(SHARES[target] for target in targets), cases
    for target in targets:
        own = left if target == targets[-1] else cases * SHARES[target] // total
        left -= own
        found += [Slice(target, seed + at, min(SLICE, own - at)) for at in range(0, own, SLICE)]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    targets = options.target or sorted(TARGETS)
    found: dict[str, list[str]] = {target: [] for target in targets}
    counts = dict.fromkeys(targets, 0)
    start = time.monotonic()
    for part, failures in fuzz(slices(options.cases, options.seed, targets), options.workers):
        counts[part.target] += part.cases
        found[part.target] += failures
        _show(sum(counts.values()), options.cases, sum(map(len, found.values())))
    print(file=sys.stderr)
    for failures in found.values():
        print(*failures[:SHOWN], sep="\n", end="\n" if failures else "", file=sys.stderr)
    if options.json:
        report = {target: {"cases": counts[target], "failures": len(found[target])} for target in targets}
        seconds = round(time.monotonic() - start, 1)
        print(json.dumps({"cases": sum(counts.values()), "targets": report, "seconds": seconds}))
    return 1 if any(found.values()) else 0


def _seconds(target: str, seed: int) -> float:
    start = time.perf_counter()
    TARGETS[target](Random(seed))
    return time.perf_counter() - start


def _show(done: int, cases: int, failures: int) -> None:
    filled = 40 * done // max(1, cases)
    print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{cases} cases, {failures} failures", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
