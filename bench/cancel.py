"""A thousand random cancels over a running mesh: no page may leak, whatever a request was doing when it was cancelled.

`python -m bench.cancel --count 1000 --json`. Half of the cancels go over shared memory, half over TCP. In what stage a
cancel hit is what the services themselves note when it reaches them (`bench/stages.py`). After 10 s of quiet every page
of every worker must be free or cached; exit 1 if one is not, or if a stage was hit too rarely to mean anything."""

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.asking import Client
from bench.cancel_load import Load
from bench.mesh_process import pages_out, process_mesh
from bench.stages import STAGES, Stages

ENOUGH_HITS = 50  # per stage, of 1,000
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "16",  # many steps per prompt
    "worker.threads": "1",
    "prefill.pool_pages": "96",
    "decode.pool_pages": "96",  # about 8 requests: the others queue
    "decode.may_kill": "false",  # a leak is not to be hidden by killing its writer
}
# Pushes slow enough to be hit: about 50 ms for a prompt.
SPAN_PAUSE_SECONDS, BYTES_PER_SECOND = 0.001, 16e6


@dataclass(frozen=True)
class Outcome:
    stages: Counter[str]  # of the cancels that reached a living request
    leaked_pages: int
    pages: dict[str, dict[str, Any]]  # by worker
    problems: list[str]


async def cancel_many(transport: str, count: int, random: Random, rules: dict[str, bool]) -> Outcome:
    stages = Stages()
    settings = SETTINGS | {"worker.transports": transport}
    mesh = process_mesh(
        prefills=2,
        decodes=2,
        settings=settings,
        rules=rules,
        bytes_per_second=BYTES_PER_SECOND,  # over TCP
        span_pause_seconds=SPAN_PAUSE_SECONDS,  # over shared memory
        on_note=stages.note,
        start_decodes=False,
    )
    async with mesh as running:
        client = Client(running.address)
        load = Load(running, client, stages, random)
        waiting, stalled = count // 14, count // 7
        await load.without_decode(waiting)
        await asyncio.gather(*(worker.start() for worker in running.decodes))
        await running.attached(2, 2)
        await load.stalls(stalled)
        await load.at_random(count - stages.hits().total(), enough=ENOUGH_HITS * count // 500)
        await client.aclose()
        states = await asyncio.gather(*(worker.quiet() for worker in running.workers))
        pages = {worker.name: each for worker, each in zip(running.workers, states, strict=True)}
        await asyncio.sleep(0.2)  # the last notes
        leaked = sum(pages_out(each) for each in pages.values())
        if leaked:
            print(running.words(), file=sys.stderr)
    torn = [name for name, each in pages.items() if not each["agree"]]
    problems = load.errors + [f"{name}: the states do not sum to the pool: {pages[name]}" for name in torn]
    problems += [f"{name}: {each['requests']} requests left" for name, each in pages.items() if each["requests"]]
    hits = stages.hits()
    print(f"{transport}: {hits.total()} cancels, {dict(hits)}, {leaked} pages leaked", file=sys.stderr)
    return Outcome(hits, leaked, pages, problems)


async def cancel_over(transports: list[str], count: int, seed: int, rules: dict[str, bool]) -> dict[str, Any]:
    outcomes = {}
    for place, name in enumerate(transports):
        share = count // len(transports) + (place < count % len(transports))
        outcomes[name] = await cancel_many(name, share, Random(seed + place), rules)
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
        "pages": {f"{name} {who}": each for name, outcome in outcomes.items() for who, each in outcome.pages.items()},
        "seed": seed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cancel", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="cancels that reach a living request")
    parser.add_argument("--transport", choices=("shm", "tcp", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", metavar="RULE", action="append", default=[], help="switch a rule off")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    transports = ["shm", "tcp"] if given.transport == "both" else [given.transport]
    report = asyncio.run(cancel_over(transports, given.count, given.seed, dict.fromkeys(given.without, False)))
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    print(f"{report['cancels']} cancels, {report['leaked_pages']} pages leaked, hits {report['hits']}", file=sys.stderr)
    if given.json:
        print(json.dumps(report))
    return int(bool(report["leaked_pages"] or report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
