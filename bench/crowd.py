"""`python -m bench.crowd`: what another client's small requests get while the large batches of one client are served.

The mesh is that of `baton up` with the built-in model and the settings as they come. BATCHES requests come at once,
each for completions of 256 prompts of 1,900 tokens. Until the last of them has its answer, or `--seconds` are over,
another client sends small requests at random times. Requests that came when no batch was at work count for nothing.
Status 1 when a target is missed."""

import argparse
import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from bench.command import add_settings, missed, parser_of, run
from bench.overload_client import OneAnswer, RequestKind, prepare, serve_one
from bench.overload_figures import Served, about
from cli.arrangements.stream import exchange, post_bytes, request_bytes
from cli.arrangements.turn import FIRST_ID, LAST_ID
from cli.local_mesh.own_mesh import own_mesh
from cli.local_mesh.services import parse_settings

BATCHES, PROMPTS, PROMPT_TOKENS, BATCH_ANSWER_TOKENS = 4, 256, 1900, 8
SMALL = RequestKind("small", 48, 32)
LEAST = {"requests": 100, "answered_share": 0.99}  # small requests that came beside the batches, and had an answer
MOST = {"ttft_p99": 0.5}


def batch_bytes(random: Random, port: int) -> bytes:
    prompts = [random.choices(range(FIRST_ID, LAST_ID + 1), k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": BATCH_ANSWER_TOKENS, "ignore_eos": True}
    return post_bytes(port, body, "connection: close")


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    random = Random(options.seed)
    async with own_mesh(parse_settings(options.set)) as gateway:
        port, loop = int(gateway.http_address.rpartition(":")[2]), asyncio.get_running_loop()
        warm = request_bytes(SMALL.answer_tokens, [FIRST_ID] * SMALL.prompt_tokens, port)
        for _ in range(8):
            await exchange(port, warm, OneAnswer)
        began = loop.time()
        contents = [batch_bytes(random, port) for _ in range(BATCHES)]
        batches = [asyncio.create_task(exchange(port, content, OneAnswer)) for content in contents]
        small = list[asyncio.Task[Served]]()
        while loop.time() - began < options.seconds and not all(each.done() for each in batches):
            prompt = random.choices(range(FIRST_ID, LAST_ID + 1), k=SMALL.prompt_tokens)
            small.append(asyncio.create_task(serve_one(prepare(port, SMALL, prompt))))
            await asyncio.sleep(random.expovariate(options.rate))
        ends = loop.time()
        served = await asyncio.gather(*small)
        for each in batches:
            each.cancel()
        ended = await asyncio.gather(*batches, return_exceptions=True)
        statuses = [each.status if isinstance(each, OneAnswer) else 0 for each in ended]
    return report(served, statuses, ends - began)


def report(served: Sequence[Served], statuses: Sequence[int], seconds: float) -> dict[str, Any]:
    """`statuses`: of the batches' answers; 0: a batch was still at work when the time was over."""
    found = about(served) | {
        "answered_share": sum(each.done for each in served) / max(1, len(served)),
        "batch_statuses": list(statuses),
        "seconds": seconds,
    }
    refused = [status for status in statuses if status not in (0, 200)]
    lines = missed(found, least=LEAST, most=MOST) + ([f"batches were answered with {refused}"] if refused else [])
    return found | {"missed": lines}


def main() -> None:
    parser = parser_of("crowd", __doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="the longest time for which small requests come")
    parser.add_argument("--rate", type=float, default=5.0, help="small requests per second")
    parser.add_argument("--seed", type=int, default=1)
    add_settings(parser, "a setting of the mesh")
    run(parser, bench)


if __name__ == "__main__":
    main()
