"""`python -m tests.sim --seeds N --first S --json`: simulate seeds with random faults and report every violation."""

import argparse
import hashlib
import json
import logging
import sys

from tests.sim.chaos import run_seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--requests", type=int, default=40, help="requests per seed")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    violations, logs, faults = [], hashlib.sha256(), dict[str, int]()
    for seed in range(given.first, given.first + given.seeds):
        outcome = run_seed(seed, requests=given.requests)
        logs.update(outcome.event_log_hash.encode())
        violations += [f"seed {seed}: {what}" for what in outcome.violations]
        for kind, count in outcome.faults.items():
            faults[kind] = faults.get(kind, 0) + count
        print(f"seed {seed}: {outcome.requests} requests, {outcome.errors} errors, {outcome.faults}", file=sys.stderr)
        for what in outcome.violations:
            print(f"  {what}", file=sys.stderr)
    if given.json:
        report = {
            "seeds": given.seeds,
            "violations": len(violations),
            "event_log_hash": logs.hexdigest()[:16],
            "what": violations[:20],
            "faults": faults,
        }
        print(json.dumps(report))
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())
