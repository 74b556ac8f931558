"""`make docs-check`: runs every command of README.md and docs/*.md, page by page, and lists what cannot be run here.

Each page has a network, a home and a scratch folder of its own. `--page README.md` checks one page; `--json` prints one
object."""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.docs_check.markdown import parse_page
from tests.docs_check.network import enter_own_network
from tests.docs_check.running import ROOT, Failure, Outcome, check_page


def pages() -> list[str]:
    return ["README.md", *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]


def check(path: str, seconds: float) -> Outcome:
    """In a process of its own, because a process cannot go back to the network that it left."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(_check, (path, seconds))


def _check(path: str, seconds: float) -> Outcome:
    os.environ["TMPDIR"] = tempfile.gettempdir()
    if not enter_own_network():
        print("no network of its own: the ports 8000, 50051 and 50052 must be free", file=sys.stderr)
    file = Path(path) if Path(path).is_absolute() else ROOT / path
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as scratch:
        say = lambda what: print(what, file=sys.stderr, flush=True)  # noqa: E731
        return check_page(parse_page(path, file.read_text()), Path(scratch), seconds=seconds, say=say)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs_check", description=__doc__)
    parser.add_argument("--page", action="append", help="check this page only; may be repeated")
    parser.add_argument("--seconds", type=float, default=180.0, help="longest time of one block")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    outcomes = [check(path, options.seconds) for path in options.page or pages()]
    skipped = [each for outcome in outcomes for each in outcome.skipped]
    failures: list[Failure] = [each for outcome in outcomes for each in outcome.failures]
    for each in skipped:
        print(f"not run  {each.page}:{each.line}  {each.what}  ({each.reason})", file=sys.stderr)
    for failure in failures:
        print(f"FAILED   {failure.page}:{failure.line}  {failure.what}", file=sys.stderr)
    report = {
        "ok": not failures,
        "pages": len(outcomes),
        "blocks": sum(outcome.run for outcome in outcomes),
        "commands": sum(outcome.commands for outcome in outcomes),
        "seconds": {outcome.page: outcome.seconds for outcome in outcomes if outcome.run},
        "skipped": [asdict(each) for each in skipped],
        "failures": [asdict(each) for each in failures],
    }
    summary = f"{report['commands']} commands of {len(outcomes)} pages, {len(skipped)} not run, {len(failures)} failed"
    print(json.dumps(report) if options.json else summary)
    return 0 if not failures else 1


if __name__ == "__main__":
    sys.exit(main())
