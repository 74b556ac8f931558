"""`python -m tests.chaos --minutes 30 --json`, or `make chaos MINUTES=30`: a storm over real processes.

2 prefill workers, 3 decode workers and 2 gateways; every 5 s one process of a random role is killed, stopped for a
while, or its network is disturbed, under load (tests/chaos/storm.py): by a proxy, and for one worker of each tier by
the kernel, which needs root, iproute2 and nftables. The result names kinds of strikes that this host has not. Status 1
when a request failed, a token was wrong or a page did not come back. A storm that struck nothing proves nothing, so it
has status 1 too."""

import argparse
import asyncio
import json
import sys
from random import Random

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.storm import storm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the storm")
    parser.add_argument("--seed", type=int, default=0, help="seed of the strikes and of the order of requests")
    parser.add_argument("--processes-only", action="store_true", help="kill and stop; leave the network alone")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    columns = (TextColumn("storm"), BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=60 * given.minutes)
        made = storm(
            60 * given.minutes,
            Random(given.seed),
            network=not given.processes_only,
            on_second=lambda: bar.advance(task),
        )
        report = asyncio.run(made)
    for kind, why in report["unavailable"].items():
        print(f"no strike was of the kind {kind}: {why}", file=sys.stderr)
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    if given.json:
        print(json.dumps(report))
    else:
        print(
            f"{report['requests']} requests, {report['by_kind']}, {report['failed']} failed, "
            f"{report['wrong_tokens']} wrong tokens, {report['leaked_pages']} pages leaked"
        )
    bad = report["failed"] or report["wrong_tokens"] or report["leaked_pages"] or report["problems"]
    return int(bool(bad) or not report["kills"])


if __name__ == "__main__":
    sys.exit(main())
