"""A thousand random cancels over a running mesh: no page may leak, whatever a request was doing when it was cancelled.

`python -m tests.chaos.cancel --count 1000 --json`. Half of the cancels go over shared memory, half over TCP. The
services report in which stage a cancel hit (`tests/chaos/cancel_stages.py`). After 10 s of quiet every page of every
worker must be free or cached. Status 1 when a page is not, or when a stage was hit too rarely to mean anything."""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.chaos.cancel_load import CancelLoad
from tests.chaos.cancel_stages import STAGES, Stages
from tests.harness.client import MeshClient
from tests.harness.mesh import process_mesh
from tests.harness.process import pages_held

ENOUGH_HITS = 50  # per stage, of 1,000 cancels
LAST_EVENTS_SECONDS = 0.2
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "16",  # many steps per prompt
    "worker.threads": "1",
    "prefill.pool_pages": "96",
    "decode.pool_pages": "96",  # about 8 requests: the others queue
    "gateway.local": "never",  # on one host decode would compute most prompts itself, and hardly a page be pushed
    "decode.may_kill": "false",  # killing its writer would hide a leak
}
# Pushes slow enough to be hit: about 50 ms for a prompt.
SPAN_PAUSE_SECONDS, BYTES_PER_SECOND = 0.001, 16e6


@dataclass(frozen=True)
class CancelOutcome:
    stages: Counter[str]  # hits of the cancels that reached a living request
    leaked_pages: int
    pages: dict[str, dict[str, Any]]  # page states, by worker
    problems: list[str]


async def cancel_many(transport: str, count: int, random: Random, *, mutants: Sequence[str] = ()) -> CancelOutcome:
    stages = Stages()
    settings = SETTINGS | {"worker.transports": transport}
    mesh = process_mesh(
        prefills=2,
        decodes=2,
        settings=settings,
        mutants=mutants,
        bytes_per_second=BYTES_PER_SECOND,  # over TCP
        span_pause_seconds=SPAN_PAUSE_SECONDS,  # over shared memory
        on_event=stages.take,
        start_decodes=False,
    )
    async with mesh as running:
        client = MeshClient(running.address)
        load = CancelLoad(running, client, stages, random)
        waiting, stalled = count // 14, count // 7
        await load.without_decode(waiting)
        await asyncio.gather(*(worker.start() for worker in running.decodes))
        await running.attached(2, 2)
        await load.stalls(stalled)
        await load.at_random(count - stages.hits().total(), enough=ENOUGH_HITS * count // 500)
        await client.aclose()
        states = await asyncio.gather(*(worker.quiet() for worker in running.workers))
        pages = {worker.name: each for worker, each in zip(running.workers, states, strict=True)}
        await asyncio.sleep(LAST_EVENTS_SECONDS)
        leaked = sum(pages_held(each) for each in pages.values())
        if leaked:
            print(running.last_lines(), file=sys.stderr)
    torn = [name for name, each in pages.items() if not each["agree"]]
    problems = load.errors + [f"{name}: the states do not sum to the pool: {pages[name]}" for name in torn]
    problems += [f"{name}: {each['requests']} requests left" for name, each in pages.items() if each["requests"]]
    hits = stages.hits()
    print(f"{transport}: {hits.total()} cancels, {dict(hits)}, {leaked} pages leaked", file=sys.stderr)
    return CancelOutcome(hits, leaked, pages, problems)


async def cancel_over(transports: list[str], count: int, seed: int, mutants: Sequence[str]) -> dict[str, Any]:
    outcomes = {}
    for place, name in enumerate(transports):
        share = count // len(transports) + (place < count % len(transports))
        outcomes[name] = await cancel_many(name, share, Random(seed + place), mutants=mutants)
    hits: Counter[str] = Counter()
    for outcome in outcomes.values():
        hits += outcome.stages
    enough = ENOUGH_HITS * count // 1000
    problems = [f"{name}, {problem}" for name, outcome in outcomes.items() for problem in outcome.problems]
    problems += [f"stage {stage}: {hits[stage]} hits, {enough} wanted" for stage in STAGES if hits[stage] < enough]
    return {
        "cancels": hits.total(),
        "leaked_pages": sum(outcome.leaked_pages for outcome in outcomes.values()),
        "hits": {stage: hits[stage] for stage in STAGES},
        "hits_elsewhere": {stage: number for stage, number in hits.items() if stage not in STAGES},
        "problems": problems,
        "pages": {
            f"{name} {worker}": each for name, outcome in outcomes.items() for worker, each in outcome.pages.items()
        },
        "seed": seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cancel", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many cancels must reach a living request")
    parser.add_argument("--transport", choices=("shm", "tcp", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices")
    parser.add_argument(
        "--without", metavar="RULE", action="append", default=[], help="replace a rule's guard by its mutant"
    )
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    transports = ["shm", "tcp"] if given.transport == "both" else [given.transport]
    report = asyncio.run(cancel_over(transports, given.count, given.seed, given.without))
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    print(f"{report['cancels']} cancels, {report['leaked_pages']} pages leaked, hits {report['hits']}", file=sys.stderr)
    if given.json:
        print(json.dumps(report))
    return int(bool(report["leaked_pages"] or report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
