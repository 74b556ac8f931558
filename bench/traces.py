"""`python -m bench.traces`: does every trace add up, and does a delay appear in the span that is named for it?

First mixed requests run through a mesh behind real Envoys with mutual TLS; a collector receives everything, and each
trace must be one complete tree whose stages tile the request. Then delays of 80 ms are put into each stage of requests
to a mesh without sidecars, and between stages. Status 1 when something does not hold."""

import argparse
from typing import Any

from bench.command import parser_of, run
from bench.processor import processor
from bench.traces_delays import DELAY_SECONDS, all_stages
from bench.traces_mixed import mixed

LEAST_TILED = 0.98


def main() -> None:
    parser = parser_of("traces", __doc__)
    parser.add_argument("--requests", type=int, default=200, help="mixed requests")
    parser.add_argument("--repeats", type=int, default=9, help="pairs of requests for each delayed stage")
    parser.add_argument("--only", choices=("mixed", "delays"), default=None)
    run(parser, bench)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    report: dict[str, Any] = {"processor": processor(), "missed": []}
    if options.only != "delays":
        seen = await mixed(options.requests)
        report |= seen
        report["missed"] += seen["problems"]
        if seen["min_tiled"] < LEAST_TILED:
            report["missed"].append(f"a request is tiled by {seen['min_tiled']:.3f} only")
        if seen["orphans"]:
            report["missed"].append(f"{seen['orphans']} orphaned spans")
        if not seen["resumed"]:
            report["missed"].append("no request was resumed")
    if options.only != "mixed":
        stages = await all_stages(options.repeats)
        report["delay_ms"] = DELAY_SECONDS * 1000
        report["injected"] = {each.stage: each.shown for each in stages}
        report["missed"] += [f"{each.stage}: {each.problem}" for each in stages if each.problem]
    return report


if __name__ == "__main__":
    main()
