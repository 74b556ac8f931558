"""`python -m tests.fuzz --cases N --json`: random cases for all parsers of the gateway and of the wires.

No case may raise anything but an error that names a field, take longer than a tenth of a second or more than half a
gigabyte. A failure is printed with the seed that repeats it: `--target NAME --seed SEED --cases 1`. `make fuzz` runs a
million cases; `--asan` runs those targets that reach native code with a library built for AddressSanitizer."""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random

from tests.fuzz import asan
from tests.fuzz.memory_bound import memory_bound
from tests.fuzz.targets import NATIVE, SHARES, TARGETS

SLOW_SECONDS = 0.1
CASE_BYTES = 512 << 20  # that a slice may take beyond what the process has at its begin
SLICE = 2000  # cases that one task runs
STRETCHED = 10  # times as long as alone a case may take on a busy machine
SHOWN = 5  # failures of a target that are printed


@dataclass(frozen=True)
class Slice:
    target: str
    seed: int  # seed of the first case; the next ones count up
    cases: int


@dataclass(frozen=True)
class SliceOutcome:
    failures: list[str]
    reached: int  # cases that got behind the first check


def run(part: Slice) -> SliceOutcome:
    """Run a slice. A slow case runs again, because the machine may have paused."""
    failures, reached = list[str](), 0
    target = TARGETS[part.target]
    with quiet(), memory_bound(CASE_BYTES):
        with suppress(Exception):
            target(Random(0))  # loads what the first case would load
        for seed in range(part.seed, part.seed + part.cases):
            try:
                best, deep = _timed(part.target, seed)
                if best > SLOW_SECONDS:
                    best = min(_timed(part.target, seed)[0] for _ in range(3))
                if best > SLOW_SECONDS:
                    failures.append(f"--target {part.target} --seed {seed}: took {best:.2f} s")
                reached += deep
            except Exception as error:
                failures.append(f"--target {part.target} --seed {seed}: {type(error).__name__}: {error}"[:500])
    return SliceOutcome(failures, reached)


@contextmanager
def quiet() -> Iterator[None]:
    """The code logs every peer that it refuses, and here that is nearly every one."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def fuzz(parts: list[Slice], workers: int) -> Iterator[tuple[Slice, SliceOutcome]]:
    if workers == 1:
        yield from ((part, run(part)) for part in parts)
        return
    with ProcessPoolExecutor(workers) as pool:
        running = {pool.submit(run, part): part for part in parts}
        for done in as_completed(running):
            part = running[done]
            try:
                yield part, done.result()
            except BrokenProcessPool:  # native code has ended a process, and with it all slices that were left
                again = f"--target {part.target} --seed {part.seed} --cases {part.cases} --workers 1"
                yield part, SliceOutcome([f"{again}: a process died in this slice or before it"], 0)


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
    parser.add_argument("--asan", action="store_true", help="with native code under AddressSanitizer")
    options = parser.parse_args()
    if options.asan and not asan.is_loaded():
        return asan.run_again(sys.argv[1:])
    targets = options.target or sorted(NATIVE if options.asan else TARGETS)
    found: dict[str, list[str]] = {target: [] for target in targets}
    counts, reached = dict.fromkeys(targets, 0), dict.fromkeys(targets, 0)
    start = time.monotonic()
    for part, outcome in fuzz(slices(options.cases, options.seed, targets), options.workers):
        counts[part.target] += part.cases
        reached[part.target] += outcome.reached
        found[part.target] += outcome.failures
        _show(sum(counts.values()), options.cases, sum(map(len, found.values())))
    print(file=sys.stderr)
    for failures in found.values():
        print(*failures[:SHOWN], sep="\n", end="\n" if failures else "", file=sys.stderr)
    if options.json:
        report = {
            target: {"cases": counts[target], "reached": reached[target], "failures": len(found[target])}
            for target in targets
        }
        seconds, cases = round(time.monotonic() - start, 1), sum(counts.values())
        rate = round(cases / max(seconds, 0.1))
        print(json.dumps({"cases": cases, "targets": report, "seconds": seconds, "cases_per_second": rate}))
    return 1 if any(found.values()) else 0


def _timed(target: str, seed: int) -> tuple[float, bool]:
    """Seconds of a case, and whether it got behind the first check. Processor time, which a busy machine does not
    stretch; a case that waits is found by a share of the time that passed."""
    start, busy = time.perf_counter(), time.process_time()
    deep = TARGETS[target](Random(seed))
    return max(time.process_time() - busy, (time.perf_counter() - start) / STRETCHED), deep is not False


def _show(done: int, cases: int, failures: int) -> None:
    filled = 40 * done // max(1, cases)
    print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{cases} cases, {failures} failures", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
