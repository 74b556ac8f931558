"""`python -m bench.split`: what the adaptive split gains over fixed ones, with the built-in model on this machine.

Three meshes take turns under the same load, so many clients with one request at a time each: *whole*, one decode worker
that computes prompts itself, in whole chunks; *fixed*, one prefill and one decode worker that never computes a prompt;
and *adaptive*, the same two where decode takes prompts that it computes earlier, cut to fit into a gap
(`itl_target_ms`). All three have this machine's cores: in *fixed* the two workers divide them, in *adaptive* decode has
all of them, and prefill the same. Throughput and time to the first token are compared with *whole*; figures
are medians over the rounds. Status 1 when a target is missed."""

import argparse
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from bench.command import add_settings, missed, parser_of, run, say
from bench.spread import Spread, medians, ranges
from bench.turns import rounds
from cli.arrangements.turn import ClosedLoad, LoadTurn, NoTokens, TurnTimes, run_turn
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.services import parse_settings
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
LEAST, MOST = {"throughput_share": 0.95, "ttft_share": 0.95}, {"itl_p99_ms": 80.0}


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    load, random = ClosedLoad(options.clients, options.prompt, options.answer), Random(options.seed)
    times = TurnTimes(min(WARM_SECONDS, options.seconds), options.seconds, LONGEST_SECONDS)
    own = parse_settings(options.set)

    async def measure(name: str) -> LoadTurn:
        async with own_mesh(COMMON | ARRANGEMENTS[name] | own) as gateway:
            turn = await run_turn(gateway.http_address, load, times, random)
        say(f"{name}: {turn.tokens_per_second:.0f} tokens/s, gaps p99 {turn.itl_p99_ms:.0f} ms")
        return turn

    facts = {"clients": options.clients, "prompt": options.prompt, "answer": options.answer, "rounds": options.rounds}
    return summary([found async for found in rounds(ARRANGEMENTS, measure, options.rounds)]) | facts


def summary(found: Sequence[Mapping[str, LoadTurn]]) -> dict[str, Any]:
    """Shares are those of the adaptive mesh over the one without prefill workers, more being better."""
    adaptive, whole = [each["adaptive"] for each in found], [each["whole"] for each in found]
    spreads = {
        "throughput_share": Spread.ratio(
            [each.tokens_per_second for each in adaptive], [each.tokens_per_second for each in whole]
        ),
        "ttft_share": Spread.ratio([each.ttft_p50 for each in whole], [each.ttft_p50 for each in adaptive]),
        "itl_p99_ms": Spread.of([each.itl_p99_ms for each in adaptive]),
    }
    return medians(spreads) | {
        "spread": ranges(spreads),
        "turns": {name: [each[name].facts() for each in found] for name in ARRANGEMENTS},
        "targets": LEAST | MOST,
        "missed": missed(medians(spreads), least=LEAST, most=MOST),
    }


def main() -> None:
    parser = parser_of("split", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each mesh; figures are medians over them")
    parser.add_argument("--seconds", type=float, default=30.0, help="of one turn")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    add_settings(parser, "a setting of all three meshes")
    run(parser, bench, NoTokens)


if __name__ == "__main__":
    main()
