"""`python -m bench.routing`: how long a route takes to choose in a large mesh, and what it is worth.

Decisions: the gateway's own router, with its index of cached blocks, in a mesh of 1,000 workers that hold 1,000,000
blocks; a prompt's block hashes are given, since they are computed once per request. Between two decisions workers
report. Worth: the same requests go through a simulated mesh twice, once over the router's routes and once in turn
(round robin), and the means of the time to the first token are compared; `--trace` names a public trace
(bench/routing_trace.py), else conversations are made up. Figures are medians over the rounds. Status 1 when a target is
missed."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter
from typing import Any

from bench.command import missed, parser_of, run, say
from bench.routing_mesh import SimulatedRouting, in_turn, routed
from bench.routing_trace import TraceRow, conversations, read_trace
from bench.routing_world import RoutingWorld
from bench.spread import Spread, medians, ranges
from cli.arrangements.turn import quantile
from cli.load.plan import LoadError

TARGETS = {"decision_us_p99": 100.0, "ttft_ratio_to_round_robin": 0.8}


def main() -> None:
    parser = parser_of("routing", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=1000, help="of one round")
    parser.add_argument("--workers", type=int, default=1000, help="half of them prefill")
    parser.add_argument("--blocks", type=int, default=1_000_000, help="cached by all workers together")
    parser.add_argument("--trace", type=Path, help="conversation trace of Mooncake (.jsonl) or Azure (.csv)")
    parser.add_argument("--requests", type=int, default=2000, help="of one simulated round")
    parser.add_argument(
        "--load", type=float, default=0.7, help="prompt tokens that come, as a share of what prefill computes"
    )
    parser.add_argument("--seed", type=int, default=1)
    run(parser, bench, LoadError)


def bench(options: argparse.Namespace) -> dict[str, Any]:
    decisions, means = list[list[float]](), list[dict[str, float]]()
    rounds = requests_of(options)
    world = RoutingWorld(options.workers, options.blocks, Random(options.seed))
    for _ in range(options.rounds):
        decisions.append(sorted(decide(world) for _ in range(options.decisions)))
        say(f"a decision takes {quantile(decisions[-1], 0.5):.0f} µs")
    for requests in rounds:
        router, turns = (mean_ttft(SimulatedRouting(requests, way, options.load)) for way in (routed, in_turn()))
        means.append({"router": router, "round_robin": turns})
        say(f"first token after {router / turns:.2f} of round robin's time")
    spreads = {
        "decision_us_p99": Spread.of([quantile(each, 0.99) for each in decisions]),
        "ttft_ratio_to_round_robin": Spread.of([each["router"] / each["round_robin"] for each in means]),
    }
    return medians(spreads) | {
        "decision_us_p50": median(quantile(each, 0.5) for each in decisions),
        "spread": ranges(spreads),
        "mean_ttft_seconds": means,
        "workers": options.workers,
        "blocks": len(world.table.index),
        "trace": options.trace.name if options.trace else "made up",
        "targets": TARGETS,
        "missed": missed(medians(spreads), most=TARGETS),
    }


def decide(world: RoutingWorld) -> float:
    """Microseconds of one decision: who has how much of the prompt, the cheapest route, and the parts of its cost."""
    tokens, hashes = world.request()
    began = perf_counter()
    chosen = world.decide(tokens, hashes)
    took = perf_counter() - began
    world.sends(chosen, tokens)
    return took * 1e6


def requests_of(options: argparse.Namespace) -> Sequence[Sequence[TraceRow]]:
    """The requests of each round."""
    if options.trace is not None:
        return read_trace(options.trace, rounds=options.rounds, count=options.requests)
    return [conversations(options.requests, Random(options.seed + number)) for number in range(options.rounds)]


def mean_ttft(simulation: SimulatedRouting) -> float:
    firsts = simulation.run()
    return sum(firsts) / len(firsts)


if __name__ == "__main__":
    main()
