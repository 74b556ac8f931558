"""`python -m bench.crowd`: what another client's small requests get while the large batches of one client are served.

The mesh is that of `baton up` with the built-in model and the settings as they come. BATCHES requests come at once,
each for completions of 256 prompts of 1,900 tokens. Until the last of them has its answer, or `--seconds` are over,
another client sends small requests at random times. Requests that came when no batch was at work count for nothing.
Status 1 when a target is missed."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

from bench.overload_client import RequestKind, prepare, serve_one
from bench.overload_figures import Served
from cli.arrangements.stream import exchange, request_bytes
from cli.arrangements.turn import FIRST_ID, LAST_ID, quantile
from cli.local_mesh.own_mesh import own_mesh

BATCHES, PROMPTS, PROMPT_TOKENS, BATCH_ANSWER_TOKENS = 4, 256, 1900, 8
SMALL = RequestKind("small", 48, 32)
LEAST_ANSWERED, MOST_TTFT_SECONDS, LEAST_REQUESTS = 0.99, 0.5, 100


class AnswerAtOnce(asyncio.Protocol):
    """The client's end of a connection whose answer comes whole; the server closes it behind that."""

    def __init__(self) -> None:
        self.over, self.problem, self.status = asyncio.Event(), "", 0

    def data_received(self, data: bytes) -> None:
        self.status = self.status or int(data[9:12])

    def connection_lost(self, exc: Exception | None) -> None:
        self.problem = "" if self.status else f"the connection broke: {exc}"
        self.over.set()


def batch_bytes(random: Random, port: int) -> bytes:
    prompts = [random.choices(range(FIRST_ID, LAST_ID + 1), k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": BATCH_ANSWER_TOKENS, "ignore_eos": True}
    content = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def bench(options: argparse.Namespace) -> dict[str, Any]:
    random = Random(options.seed)
    async with own_mesh(dict(each.split("=", 1) for each in options.set)) as gateway:
        port, loop = int(gateway.http_address.rpartition(":")[2]), asyncio.get_running_loop()
        warm = request_bytes(SMALL.answer_tokens, [FIRST_ID] * SMALL.prompt_tokens, port)
        for _ in range(8):
            await exchange(port, warm, AnswerAtOnce)
        began = loop.time()
        contents = [batch_bytes(random, port) for _ in range(BATCHES)]
        batches = [asyncio.create_task(exchange(port, content, AnswerAtOnce)) for content in contents]
        small = list[asyncio.Task[Served]]()
        while loop.time() - began < options.seconds and not all(each.done() for each in batches):
            prompt = random.choices(range(FIRST_ID, LAST_ID + 1), k=SMALL.prompt_tokens)
            small.append(asyncio.create_task(serve_one(prepare(port, SMALL, prompt))))
            await asyncio.sleep(random.expovariate(options.rate))
        ends = loop.time()
        served = await asyncio.gather(*small)
        for each in batches:
            each.cancel()
        statuses = [each.status if isinstance(each, AnswerAtOnce) else 0 for each in await _ended(batches)]
    return report(served, statuses, ends - began)


async def _ended(batches: Sequence["asyncio.Task[AnswerAtOnce]"]) -> list[AnswerAtOnce | BaseException]:
    return await asyncio.gather(*batches, return_exceptions=True)


def report(served: Sequence[Served], statuses: Sequence[int], seconds: float) -> dict[str, Any]:
    """`statuses`: of the batches' answers; 0: a batch was still at work when the time was over."""
    firsts = sorted(each.first - each.came for each in served if each.done)
    found = {
        "requests": len(served),
        "answered_share": sum(each.done for each in served) / max(1, len(served)),
        "refused": sum(each.refused for each in served),
        "ttft_p50": quantile(firsts, 0.5),
        "ttft_p99": quantile(firsts, 0.99),
        "batch_statuses": list(statuses),
        "seconds": seconds,
        "problems": sorted({each.problem for each in served if each.problem})[:5],
    }
    return found | {"missed": misses(found)}


def misses(found: dict[str, Any]) -> list[str]:
    missed = []
    if found["requests"] < LEAST_REQUESTS:
        missed.append(f"only {found['requests']} small requests came beside the batches, wanted {LEAST_REQUESTS}")
    if found["answered_share"] < LEAST_ANSWERED:
        missed.append(f"{found['answered_share']:.1%} of the small requests were answered, wanted {LEAST_ANSWERED:.0%}")
    if found["ttft_p99"] > MOST_TTFT_SECONDS:
        missed.append(f"99 of 100 had a first token in {found['ttft_p99']:.3f} s, wanted {MOST_TTFT_SECONDS} s")
    if refused := [status for status in found["batch_statuses"] if status not in (0, 200)]:
        missed.append(f"batches were answered with {refused}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end stdout with one JSON object")
    parser.add_argument("--seconds", type=float, default=120.0, help="the longest time for which small requests come")
    parser.add_argument("--rate", type=float, default=5.0, help="small requests per second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the mesh")
    options = parser.parse_args()
    found = asyncio.run(bench(options))
    for line in found["missed"]:
        print(f"missed: {line}", file=sys.stderr)
    if options.json:
        print(json.dumps(found))
    sys.exit(1 if found["missed"] else 0)


if __name__ == "__main__":
    main()
