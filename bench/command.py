"""The frame that all benchmarks share: options, lines of progress, targets, and the JSON object and status at the end.

The `missed` of a report has a line for each target that was not reached: the lines are printed, and one of them makes
the status 1. A report without targets has no such key."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NoReturn

Report = Mapping[str, Any]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def parser_of(name: str, about: str | None) -> argparse.ArgumentParser:
    """The options of `python -m bench.NAME`: those that all benchmarks have."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    return parser


def add_settings(parser: argparse.ArgumentParser, about: str) -> None:
    """`--set`, whose values cli.local_mesh.services.parse_settings reads."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=about)


def run(
    parser: argparse.ArgumentParser,
    bench: Callable[[argparse.Namespace], Report | Coroutine[Any, Any, Report]],
    *failures: type[Exception],
    loop_factory: LoopFactory | None = None,
) -> NoReturn:
    """Measure and end the process. `failures`: exceptions whose message says why there is no result."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # on the way out meshes stop and folders are removed
    options = parser.parse_args()
    try:
        report = bench(options)
        if isinstance(report, Coroutine):
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                report = runner.run(report)
    except failures as error:
        sys.exit(f"{parser.prog.removeprefix('python -m ')}: {error}")
    missed = report.get("missed", ())
    for line in missed:
        say(f"MISSED: {line}")
    if options.json:
        print(json.dumps(report))
    sys.exit(1 if missed else 0)


def missed(
    figures: Mapping[str, float], *, least: Mapping[str, float] | None = None, most: Mapping[str, float] | None = None
) -> list[str]:
    """A line for each figure that is below its least or above its most value; one that is no number misses both."""
    low = [(name, ">=", limit) for name, limit in (least or {}).items() if not figures[name] >= limit]
    high = [(name, "<=", limit) for name, limit in (most or {}).items() if not figures[name] <= limit]
    return [f"{name} is {figures[name]:.4g}, wanted {sign} {limit:.4g}" for name, sign, limit in low + high]
