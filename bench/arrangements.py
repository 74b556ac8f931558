"""`python -m bench.arrangements`: is what `baton up` starts by default the best arrangement for this machine?

A mesh for each arrangement of `baton doctor --arrangements` runs, with a model of Qwen2.5-0.5B's shape and random
weights, 256 tokens in and 64 out. One client sends its requests to the meshes in turns, one request at a time: if the
machine gets slower for some seconds, all of them do. Sixteen clients stay at a mesh for a turn. Figures are medians
over the rounds; the default's shares are those of each round. Status 1 when a target is missed."""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from random import Random
from statistics import median
from typing import Any

from bench.command import add_settings, missed, parser_of, run, say
from bench.models import BYTES, make_once
from bench.processor import processor
from bench.spread import Spread, medians, ranges
from bench.turns import rounds
from cli.arrangements.measure import ARRANGEMENTS, DEFAULT, MeasureOrder, Turns, settings_of
from cli.arrangements.stream import StreamTimes, stream_one
from cli.arrangements.turn import ClosedLoad, LoadTurn, NoTokens, TurnTimes, any_prompt, run_turn
from cli.arrangements.verdict import best_of, share_of_default
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.services import arranged, parse_settings
from mesh.config.common_config import default_cache_folder
from mesh.config.settings import read_settings

LEAST_TOKENS, MOST = 0.95, {"ttft": 1.1, "itl_p99": 1.1}  # the default beside the best arrangement
LEAST_ADAPTIVE = 0.97  # tokens of one prefill and one decode worker beside one worker alone
SHARES = ("tokens", *MOST)
FIGURES = ("tokens_per_second", "ttft_p50", "itl_p99_ms")

Rounds = Sequence[Mapping[str, Turns]]


def summary(measured: Rounds, chosen: str) -> dict[str, Any]:
    clients = list(measured[0][DEFAULT])
    spreads = dict[str, dict[str, Spread]]()
    for n in clients:
        shares = [share_of_default(found, n) for found in measured]
        spreads[str(n)] = {name: Spread.of([getattr(share, name) for share in shares]) for name in SHARES}
    default_share = {n: medians(each) for n, each in spreads.items()}
    adaptive = median(_tokens(found, "adaptive 1+1") / _tokens(found, "one worker") for found in measured)
    return {
        "arrangements": {
            name: {str(n): typical([found[name][n] for found in measured]) for n in clients} for name in measured[0]
        },
        "default": chosen,
        "best": {str(n): [best_of(found, n) for found in measured] for n in clients},
        "default_share": default_share,
        "spread": {n: ranges(each) for n, each in spreads.items()},
        "adaptive_share": adaptive,
        "rounds": len(measured),
        "targets": {"tokens": LEAST_TOKENS, **MOST, "adaptive": LEAST_ADAPTIVE},
        "missed": [
            f"{n} clients: {line}"
            for n, share in default_share.items()
            for line in missed(share, least={"tokens": LEAST_TOKENS}, most=MOST)
        ]
        + missed({"adaptive_share": adaptive}, least={"adaptive_share": LEAST_ADAPTIVE}),
    }


def _tokens(found: Mapping[str, Turns], name: str) -> float:
    turns = found[name]
    return turns[max(turns)].tokens_per_second


def typical(turns: Sequence[LoadTurn]) -> dict[str, float]:
    return {figure: median(turn.facts()[figure] for turn in turns) for figure in FIGURES}


async def one_client(addresses: Mapping[str, str], cycles: int, random: Random) -> dict[str, LoadTurn]:
    """One client that sends a request to each mesh in turn. The first cycle warms up."""
    load, streams = ClosedLoad(1), {name: list[StreamTimes]() for name in addresses}
    ports = {name: int(address.rpartition(":")[2]) for name, address in addresses.items()}
    for cycle in range(cycles + 1):
        for name in random.sample(list(ports), len(ports)):
            stream = await stream_one(ports[name], any_prompt(load, random), load.answer_tokens)
            if stream.problem or not stream.tokens:
                raise NoTokens(f"{name}: a request got no whole answer: {stream.problem or 'no token'}")
            if cycle:
                streams[name].append(stream)
    return {name: turn_of(found) for name, found in streams.items()}


def turn_of(streams: Sequence[StreamTimes]) -> LoadTurn:
    """Requests that were sent one after the other."""
    tokens = sum(len(each.tokens) for each in streams)
    return LoadTurn(tokens / sum(each.ended - each.sent for each in streams), streams)


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    own = {"model": options.model or str(make_once(default_cache_folder(), BYTES))} | parse_settings(options.set)
    order = MeasureOrder(own, times=TurnTimes(options.warm, options.seconds, options.longest))
    random, crowd = Random(order.seed), ClosedLoad(max(order.clients))
    async with AsyncExitStack() as stack:
        addresses = dict[str, str]()
        for name in ARRANGEMENTS:
            gateway = await stack.enter_async_context(own_mesh(settings_of(name, order)))
            addresses[name] = gateway.http_address

        async def measure(name: str) -> LoadTurn:
            return await run_turn(addresses[name], crowd, order.times, random)

        alone = [await one_client(addresses, options.cycles, random) for _ in range(options.rounds)]
        crowded = [found async for found in rounds(ARRANGEMENTS, measure, options.rounds)]
    measured = [
        {name: {1: one[name], crowd.clients: many[name]} for name in ARRANGEMENTS}
        for one, many in zip(alone, crowded, strict=True)
    ]
    for found in measured:
        for name, turns in found.items():
            for clients, turn in turns.items():
                figures = f"{turn.tokens_per_second:.1f} tokens/s, {turn.ttft_p50:.2f} s, {turn.itl_p99_ms:.0f} ms"
                say(f"{name}, {clients} clients: {figures}")
    report = summary(measured, arranged(read_settings(None, {}, own).mesh())) | {"processor": processor()}
    say(f"default: {report['default']}")
    for clients, share in report["default_share"].items():
        say(f"{clients} clients: " + ", ".join(f"{key} {value:.2f}" for key, value in share.items()) + " of the best")
    return report


def main() -> None:
    parser = parser_of("arrangements", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each arrangement; figures are medians")
    parser.add_argument("--cycles", type=int, default=10, help="requests of one client at each mesh in a round")
    parser.add_argument("--seconds", type=float, default=12.0, help="of one turn of sixteen clients")
    parser.add_argument("--warm", type=float, default=4.0, help="seconds of load before each turn")
    parser.add_argument("--longest", type=float, default=120.0, help="of warm-up and turn each, on slow machines")
    parser.add_argument("--model", help="a model's folder instead of the generated one")
    add_settings(parser, "a setting of all meshes")
    run(parser, bench, NoTokens)


if __name__ == "__main__":
    main()
