"""`python -m bench.split`: what the adaptive split gains over fixed ones, with the built-in model on this machine.

Three meshes take turns under the same load, so many clients with one request at a time each: *whole*, one decode worker
that computes prompts itself, in whole chunks; *fixed*, one prefill and one decode worker that never computes a prompt;
and *adaptive*, the same two where decode takes prompts that it computes earlier, cut to fit into a gap
(`itl_target_ms`). All three have this machine's cores: in *fixed* the two workers divide them, in *adaptive* decode has
all of them, and prefill a share of the same. Throughput and time to the first token are compared with *whole*; figures
are medians over the rounds. Status 1 when a target is missed."""

import argparse
import asyncio
import json
import sys
from contextlib import AsyncExitStack
from math import isinf
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import Progress

from bench.own_mesh import own_mesh
from bench.split_client import StreamTimes, stream_one
from bench.split_figures import TARGETS, SplitTurn, misses, summary

FIRST_ID, LAST_ID = 32, 126  # token ids of prompts: printable bytes in the built-in model
PAIR = {"mesh.prefill_workers": "1", "mesh.decode_workers": "1"}
ARRANGEMENTS = {
    "whole": {"mesh.prefill_workers": "0", "mesh.decode_workers": "1", "decode.itl_target_ms": "0"},
    "fixed": PAIR | {"decode.itl_target_ms": "0"},
    # A step that takes one prompt and half of the next brings its first token sooner than one that takes both.
    "adaptive": PAIR | {"decode.itl_target_ms": "80", "decode.chunk_tokens": "384"},
}
COMMON = {"worker.speculation": "off", "gateway.queue_seconds": "0", "worker.prefix_cache": "false"}
WARM_SECONDS = 3.0
AGAIN_SECONDS = 0.1  # after which a client whose request failed sends the next one


class SplitLoad:
    def __init__(self, options: argparse.Namespace) -> None:
        self._clients, self._seconds = options.clients, options.seconds
        self._prompt, self._answer, self._random = options.prompt, options.answer, Random(options.seed)

    async def turn(self, address: str, seconds: float | None = None) -> SplitTurn:
        """Clients with one request at a time each; what ends in time counts."""
        loop, done = asyncio.get_running_loop(), list[StreamTimes]()
        began, lasts = loop.time(), seconds or self._seconds

        async def client() -> None:
            while loop.time() - began < lasts:
                prompt = [self._random.randint(FIRST_ID, LAST_ID) for _ in range(self._prompt)]
                done.append(await stream_one(int(address.rpartition(":")[2]), prompt, self._answer))
                if done[-1].problem:
                    await asyncio.sleep(AGAIN_SECONDS)

        tasks = [asyncio.create_task(client()) for _ in range(self._clients)]
        await asyncio.gather(*tasks)
        tokens = sum(at - began <= lasts for each in done for at in each.tokens)
        turn = SplitTurn(tokens / lasts, done)
        if not done or isinf(turn.ttft_p50):
            raise SystemExit(f"bench.split: most requests got no token in {lasts:g} s: {'; '.join(turn.problems)}")
        return turn


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    load, turns = SplitLoad(options), dict[str, list[SplitTurn]]({name: [] for name in ARRANGEMENTS})
    own = dict(each.split("=", 1) for each in options.set)
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("three meshes take turns", total=options.rounds * len(ARRANGEMENTS))
        for number in range(options.rounds):
            for name in ARRANGEMENTS if number % 2 == 0 else reversed(ARRANGEMENTS):
                async with AsyncExitStack() as stack:
                    gateway = await stack.enter_async_context(own_mesh(COMMON | ARRANGEMENTS[name] | own))
                    await load.turn(gateway.http_address, min(WARM_SECONDS, options.seconds))
                    turns[name].append(await load.turn(gateway.http_address))
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
    report = asyncio.run(bench(options))
    for name in misses(report):
        print(f"missed: {name}", file=sys.stderr)
    if options.json:
        print(json.dumps(report))
    sys.exit(1 if misses(report) else 0)


if __name__ == "__main__":
    main()
