"""`python -m bench.split`: what the adaptive split gains over fixed ones, with the built-in model on this machine.

Three meshes take turns under the same load, so many clients with one request at a time each: *whole*, one decode worker
that computes prompts itself, in whole chunks; *fixed*, one prefill and one decode worker that never computes a prompt;
and *adaptive*, the same two where decode takes prompts that it computes earlier, cut to fit into a gap
(`itl_target_ms`). All three have this machine's cores: in *fixed* the two workers divide them, in *adaptive* decode has
all of them, and prefill the same. Throughput and time to the first token are compared with *whole*; figures
are medians over the rounds. Status 1 when a target is missed."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.split_figures import TARGETS, misses, summary
from cli.arrangements.turn import ClosedLoad, LoadTurn, NoTokens, TurnTimes, run_turn
from cli.local_mesh.own_mesh import own_mesh
from mesh.config.arrangement import this_machine

PAIR = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1"}
ARRANGEMENTS = {
    "whole": {"mesh.prefill_workers": "0", "mesh.decode_workers": "1", "decode.itl_target_ms": "0"},
    "fixed": PAIR | {"decode.itl_target_ms": "0", "worker.threads": str(max(1, this_machine().cores // 2))},
    "adaptive": PAIR,
}
COMMON = {"worker.speculation": "off", "gateway.queue_seconds": "0", "worker.prefix_cache": "false"}
WARM_SECONDS = 3.0
LONGEST_SECONDS = 120.0  # bound on a turn, on slow machines


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    load, random = ClosedLoad(options.clients, options.prompt, options.answer), Random(options.seed)
    turns = dict[str, list[LoadTurn]]({name: [] for name in ARRANGEMENTS})
    own = dict(each.split("=", 1) for each in options.set)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("three meshes take turns", total=options.rounds * len(ARRANGEMENTS))
        for number in range(options.rounds):
            for name in ARRANGEMENTS if number % 2 == 0 else reversed(ARRANGEMENTS):
                async with AsyncExitStack() as stack:
                    gateway = await stack.enter_async_context(own_mesh(COMMON | ARRANGEMENTS[name] | own))
                    times = TurnTimes(min(WARM_SECONDS, options.seconds), options.seconds, LONGEST_SECONDS)
                    turns[name].append(await run_turn(gateway.http_address, load, times, random))
                last = turns[name][-1]
                text = f"{name}: {last.tokens_per_second:.0f} tokens/s, gaps p99 {last.itl_p99_ms:.0f} ms"
                progress.update(bar, advance=1, description=text)
    facts = {"clients": options.clients, "prompt": options.prompt, "answer": options.answer, "rounds": options.rounds}
    return {**summary(turns), **facts, "targets": TARGETS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.split", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mesh; figures are medians over them")
    parser.add_argument("--seconds", type=float, default=30.0, help="of one turn")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all three meshes")
    options = parser.parse_args()
    try:
        report = asyncio.run(bench(options))
    except NoTokens as error:
        sys.exit(f"bench.split: {error}")
    for name in misses(report):
        print(f"missed: {name}", file=sys.stderr)
    if options.json:
        print(json.dumps(report))
    sys.exit(1 if misses(report) else 0)


if __name__ == "__main__":
    main()
