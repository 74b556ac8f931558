"""`python -m tests.neon --json`: the kernel library for aarch64, compiled here and run under an emulator.

Its self-test must give the known fingerprints, random integer products those of the recipe, and edge cases the bits of
this machine's own library; with both bodies, `neon` and `plain`. `--sabotage` compiles libraries with one wrong place
each, all of which must be noticed. Status 1 if something differs, 2 if compiler or emulator are missing."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import baton_kernels as bk
from baton_kernels import build, selftest
from baton_kernels.arrays import Array
from tests.bodies.__main__ import wrong_bodies
from tests.neon import cross
from tests.neon.cases import CASES, same
from tests.neon.emulated import DriverEnded, emulated

BODIES = build.BODIES_OF["aarch64"]
LONG = ("windows", "sinks")  # paths of the self-test that take most of its time


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.neon", description=__doc__)
    parser.add_argument("--cases", type=int, default=400, help="random integer products")
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument(
        "--sabotage", action="store_true", help="wrong libraries instead, each of which must be noticed"
    )
    options = parser.parse_args()
    if lacking := cross.missing():
        print(f"not run: {lacking}", file=sys.stderr)
        sys.exit(2)
    expected = {name: list(case()) for name, case in CASES.items()}
    library = cross.honest()
    if options.sabotage:
        unseen = [name for name in cross.SABOTAGES if not _noticed(name, expected)]
        found = {"sabotages": list(cross.SABOTAGES), "failed": unseen}
    else:
        with running(library):
            failed = _check(expected, tuple(selftest.KNOWN), options.cases)
        cases = len(BODIES) * (len(selftest.KNOWN) + len(CASES) + options.cases)
        found = {"cases": cases, "bodies": list(BODIES), "failed": failed}
    if options.json:
        print(json.dumps(found))
    sys.exit(1 if found["failed"] else 0)


def running(library: Path) -> AbstractContextManager[None]:
    return emulated([cross.EMULATOR, "-L", cross.SYSROOT], cross.driver(), library)


def _noticed(name: str, expected: dict[str, list[Array]]) -> bool:
    """Whether the checks that take little time see this sabotage."""
    library, short = cross.sabotaged(name), [path for path in selftest.KNOWN if path not in LONG]
    with running(library):
        failed = _check(expected, short, 40)
    _tell(f"sabotage {name}: {'noticed' if failed else 'NOT noticed'}")
    return bool(failed)


def _check(expected: dict[str, list[Array]], paths: Sequence[str], cases: int) -> list[str]:
    """Lines that say which results differ, with their body."""
    if set(bk.bodies()["rows"]) != set(BODIES) or set(bk.chosen().values()) != {"neon"}:
        return [f"bodies: {bk.bodies()['rows']}"]
    failed = list[str]()
    try:
        for path in paths:
            wrong = _self_test(path)
            _tell(f"self-test {path}: {wrong or 'equal'}")
            failed += [f"self-test {path}: {wrong}"] if wrong else []
        for body in BODIES:
            bk.choose(body)
            for name, case in CASES.items():
                wrong = [
                    n for n, (one, other) in enumerate(zip(case(), expected[name], strict=True)) if not same(one, other)
                ]
                failed += [f"{name} with {body}: results {wrong}"] if wrong else []
        for number in range(cases):
            case_of_number, wrong_ones = wrong_bodies(number, BODIES)
            failed += [f"integers {number} with {', '.join(wrong_ones)}: {case_of_number}"] if wrong_ones else []
    except DriverEnded as error:
        failed.append(f"the driver ended: {error}")
    for line in failed:
        _tell(line)
    return failed


def _self_test(path: str) -> str:
    """Why the best body, or the plain one, fails on this path; or nothing."""
    try:
        selftest.self_test(path)
    except bk.KernelError as error:
        return str(error)
    return ""


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
