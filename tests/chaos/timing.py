"""Can a stranger find out whether somebody has sent a prompt? It asks and measures the time to its first token.

`python -m tests.chaos.timing --probes 2000 --json`, or `make timing`. For each probe a tenant sends a prompt that is
new; then a stranger sends the same prompt, or one that nobody has sent, and guesses from the time and from the cached
tokens in its answer. AUC is the probability that it ranks a prompt that was sent above one that was not: 0.5 is
guessing. With salts of their own (as tenants with keys have them) it must be at most 0.55; without, the same probes
must reach 0.9, which shows that they can tell. Status 1 otherwise. `--whole` says that the probes are a part
of more: fewer stray farther from 0.5 by chance, so their limit is wider; `signed` has what makes parts add up."""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from math import sqrt
from random import Random
from typing import Any

import grpc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.harness.client import TokenRequest, prompt_of
from tests.harness.mesh import process_mesh

PROMPT_TOKENS = 480
MOST_AUC, LEAST_AUC = 0.55, 0.9
LEARN_SECONDS = 0.01  # in which the gateway learns of cached pages
ANSWER_SECONDS = 60.0
SETTINGS = {"worker.page_tokens": "16", "worker.chunk_tokens": "64", "worker.pool_pages": "600", "worker.threads": "1"}


async def probe_many(address: str, count: int, random: Random, *, salts: bool, on_probe: Callable[[], None]) -> Any:
    """Times to the first token and cached tokens, of prompts that were sent and of those that were not."""
    sent, unsent = list[tuple[float, int]](), list[tuple[float, int]]()
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = pb_grpc.InferenceServiceStub(channel)
        for number in range(count):
            prompts = [prompt_of(random.randbytes(PROMPT_TOKENS - 1), random.randrange(90)) for _ in range(2)]
            known = random.random() < 0.5
            await ask(stub, f"tenant-{number}", prompts[0], "tenant" if salts else "")
            await asyncio.sleep(LEARN_SECONDS)
            found = await ask(stub, f"stranger-{number}", prompts[0 if known else 1], "stranger" if salts else "")
            (sent if known else unsent).append(found)
            on_probe()
    return sent, unsent


async def ask(stub: Any, name: str, prompt: tuple[int, ...], salt: str) -> tuple[float, int]:
    """Seconds to the first token, and the cached tokens that the answer names."""
    request = TokenRequest(name, prompt, 1).message()
    if salt:
        request.cache_salt = salt
    loop = asyncio.get_running_loop()
    began, first, cached = loop.time(), 0.0, 0
    async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request), timeout=ANSWER_SECONDS):
        if event.WhichOneof("event") == "delta" and not first:
            first = loop.time() - began
        elif event.WhichOneof("event") == "finished":
            cached = event.finished.usage.cached_tokens
    return first, cached


def auc(higher: Sequence[float], lower: Sequence[float]) -> float:
    """Probability that a value of `higher` is above one of `lower`; equal values count half."""
    ordered = sorted([(value, True) for value in higher] + [(value, False) for value in lower])
    ranks, at = 0.0, 0
    while at < len(ordered):
        stop = at
        while stop < len(ordered) and ordered[stop][0] == ordered[at][0]:
            stop += 1
        ranks += (at + 1 + stop) / 2 * sum(is_higher for _, is_higher in ordered[at:stop])
        at = stop
    return (ranks - len(higher) * (len(higher) + 1) / 2) / (len(higher) * len(lower))


def widened(most: float, probes: int, whole: int) -> float:
    """The limit for so many probes that holds as surely as `most` does for all. Chance moves an AUC as one over the
    root of the probes."""
    return 0.5 + (most - 0.5) * sqrt(whole / max(1, min(whole, probes)))


async def attack(count: int, seed: int, whole: int, on_probe: Callable[[], None]) -> dict[str, Any]:
    found: dict[str, Any] = {"probes": 2 * count}
    for name, salts in (("salts", True), ("no_salts", False)):
        async with process_mesh(prefills=1, decodes=1, settings=SETTINGS) as mesh:
            sent, unsent = await probe_many(mesh.address, count, Random(seed), salts=salts, on_probe=on_probe)
        times = auc([-seconds for seconds, _ in sent], [-seconds for seconds, _ in unsent])
        cached = auc([tokens for _, tokens in sent], [tokens for _, tokens in unsent])
        if salts:
            found["signed"] = {"auc_time": round(times, 4), "auc_cached": round(cached, 4)}
        found[name] = {"auc_time": round(max(times, 1 - times), 4), "auc_cached": round(max(cached, 1 - cached), 4)}
    found["hidden"] = max(found["salts"].values()) <= widened(MOST_AUC, count, whole)
    found["can_tell"] = min(found["no_salts"].values()) >= LEAST_AUC
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.timing", description=__doc__)
    parser.add_argument("--probes", type=int, default=2000, help="probes with salts, and as many without")
    parser.add_argument("--whole", type=int, help="probes with salts of which these are a part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    columns = (TextColumn("probes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=2 * given.probes)
        whole = given.whole or given.probes
        report = asyncio.run(attack(given.probes, given.seed, whole, lambda: bar.advance(task)))
    print(json.dumps(report) if given.json else f"AUC with salts {report['salts']}, without {report['no_salts']}")
    return int(not (report["hidden"] and report["can_tell"]))


if __name__ == "__main__":
    sys.exit(main())
