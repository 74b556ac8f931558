"""`python -m bench.arrangements`: is what `baton up` starts by default the best arrangement for this machine?

The arrangements of `baton doctor --arrangements` take turns with a model of Qwen2.5-0.5B's shape and random weights:
each round starts a mesh for each of them and puts one client and then sixteen on it, 256 tokens in and 64 out. Figures
are medians over the rounds; the default's shares are those of each round. Status 1 when a target is missed."""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.handoff import make_once, say
from bench.processor import processor
from bench.spread import Spread
from cli.arrangements.measure import ARRANGEMENTS, DEFAULT, MeasureOrder, Turns, measure_one
from cli.arrangements.turn import LoadTurn, NoTokens, TurnTimes
from cli.arrangements.verdict import best_of, share_of_default
from cli.local_mesh.services import arranged
from mesh.config.common_config import default_cache_folder
from mesh.config.settings import read_settings

SHAPE = "qwen2.5-0.5b-bytes"
LEAST_TOKENS, MOST_TTFT, MOST_ITL = 0.95, 1.1, 1.1  # the default beside the best arrangement
LEAST_ADAPTIVE = 0.97  # tokens of one prefill and one decode worker beside one worker alone
FIGURES = ("tokens_per_second", "ttft_p50", "itl_p99_ms")

Rounds = Sequence[Mapping[str, Turns]]


def summary(rounds: Rounds, chosen: str) -> dict[str, Any]:
    clients = list(rounds[0][DEFAULT])
    shares = {n: [share_of_default(found, n) for found in rounds] for n in clients}
    adaptive = [_tokens(found, "adaptive 1+1") / _tokens(found, "one worker") for found in rounds]
    report: dict[str, Any] = {
        "arrangements": {
            name: {str(n): medians([found[name][n] for found in rounds]) for n in clients} for name in rounds[0]
        },
        "default": chosen,
        "best": {str(n): [best_of(found, n) for found in rounds] for n in clients},
        "default_share": {
            str(n): {
                "tokens": median(each.tokens for each in shares[n]),
                "ttft": median(each.ttft for each in shares[n]),
                "itl_p99": median(each.itl_p99 for each in shares[n]),
            }
            for n in clients
        },
        "spread": {
            str(n): {
                key: [spread.low, spread.high]
                for key in ("tokens", "ttft", "itl_p99")
                for spread in (Spread.of([getattr(each, key) for each in shares[n]]),)
            }
            for n in clients
        },
        "adaptive_share": median(adaptive),
        "rounds": len(rounds),
        "targets": {"tokens": LEAST_TOKENS, "ttft": MOST_TTFT, "itl_p99": MOST_ITL, "adaptive": LEAST_ADAPTIVE},
    }
    return report | {"missed": misses(report)}


def _tokens(found: Mapping[str, Turns], name: str) -> float:
    turns = found[name]
    return turns[max(turns)].tokens_per_second


def medians(turns: Sequence[LoadTurn]) -> dict[str, float]:
    return {figure: median(turn.facts()[figure] for turn in turns) for figure in FIGURES}


def misses(report: Mapping[str, Any]) -> list[str]:
    found = list[str]()
    for clients, share in report["default_share"].items():
        if share["tokens"] < LEAST_TOKENS:
            found.append(f"{clients}: tokens/s {share['tokens']:.2f} of the best, at least {LEAST_TOKENS}")
        found += [
            f"{clients}: {key} {share[key]:.2f} times the best, at most {most}"
            for key, most in (("ttft", MOST_TTFT), ("itl_p99", MOST_ITL))
            if share[key] > most
        ]
    if report["adaptive_share"] < LEAST_ADAPTIVE:
        found.append(f"adaptive: {report['adaptive_share']:.2f} of one worker's tokens/s, at least {LEAST_ADAPTIVE}")
    return found


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    own = {"model": options.model or str(make_once(default_cache_folder(), SHAPE))} | dict(
        each.split("=", 1) for each in options.set
    )
    times = TurnTimes(options.warm, options.seconds, options.longest)
    order, rounds = MeasureOrder(own, times=times), list[dict[str, Turns]]()
    for number in range(options.rounds):
        found = dict[str, Turns]()
        for name in ARRANGEMENTS if number % 2 == 0 else reversed([*ARRANGEMENTS]):
            found[name] = await measure_one(name, order, lambda text: None)
            for clients, turn in found[name].items():
                figures = f"{turn.tokens_per_second:.1f} tokens/s, {turn.ttft_p50:.2f} s, {turn.itl_p99_ms:.0f} ms"
                say(f"round {number + 1}, {name}, {clients} clients: {figures}")
        rounds.append({name: found[name] for name in ARRANGEMENTS})
    chosen = arranged(read_settings(None, {}, own).mesh())
    return summary(rounds, chosen) | {"processor": processor()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.arrangements", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each arrangement; figures are medians")
    parser.add_argument("--seconds", type=float, default=12.0, help="of one turn")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds of load before each turn")
    parser.add_argument("--longest", type=float, default=120.0, help="of warm-up and turn each, on slow machines")
    parser.add_argument("--model", help="a model's folder instead of the generated one")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all meshes")
    options = parser.parse_args()
    try:
        report = asyncio.run(bench(options))
    except NoTokens as error:
        sys.exit(f"bench.arrangements: {error}")
    say(f"default: {report['default']}")
    for clients, share in report["default_share"].items():
        say(f"{clients} clients: " + ", ".join(f"{key} {value:.2f}" for key, value in share.items()) + " of the best")
    for line in report["missed"]:
        say(f"MISSED: {line}")
    if options.json:
        print(json.dumps(report))
    sys.exit(1 if report["missed"] else 0)


if __name__ == "__main__":
    main()
