"""A thousand damaged pages and late senders over a running mesh: no token may be wrong.

`python -m tests.chaos.corruption --count 1000 --json`, or `make corruption`. Decode's pages are damaged between their
arrival and the check (tests/harness/damage.py), over shared memory and TCP. Over shared memory, cancels in mid-push
leave writers that go on writing into pages which their request has lost: late senders. The oracle is the same requests
in an undisturbed mesh, to the last bit of their logprobs. `--without checksum` removes the guard: then wrong tokens
appear. Status 1 when a token is wrong, a request fails or a page does not come back."""

import argparse
import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos.storm_load import differences
from tests.harness.client import MeshClient, Seen, TokenRequest, prompt_of
from tests.harness.mesh import process_mesh
from tests.harness.process import pages_held

STREAMS, REQUESTS = 6, 24
CANCELLED_SHARE = 0.3  # share of requests over shared memory that are cancelled
SHARE = 0.2  # share of checks before which a page is damaged
SPAN_PAUSE_SECONDS = 0.001
SETTINGS = {
    "worker.page_tokens": "16",
    "worker.chunk_tokens": "64",
    "worker.pool_pages": "120",  # few: pages are soon used again
    "worker.prefix_cache": "false",  # every request pushes every page
    "worker.threads": "1",
    "gateway.local": "never",
}


@dataclass
class DamageTally:
    damages: Counter[str] = field(default_factory=Counter)  # by kind
    on_damage: Callable[[], None] = lambda: None

    def take(self, event: Mapping[str, Any]) -> None:
        if event["name"] == "page_damaged":
            self._count(event["kind"])
        elif event["name"] == "landing_ended" and not event["proof"] and event["spans_valid"] < event["spans_total"]:
            self._count("late")

    def _count(self, kind: str) -> None:
        self.damages[kind] += 1
        self.on_damage()


@dataclass
class DamagedRun:
    tally: DamageTally
    requests: int = 0
    wrong_tokens: int = 0
    wrong_answers: int = 0  # with a wrong token, or a wrong bit of a logprob
    leaked_pages: int = 0
    problems: Counter[str] = field(default_factory=Counter)


def request(number: int) -> TokenRequest:
    random = Random(number)
    prompt = prompt_of(random.randbytes(random.choice((120, 250, 400))), number)
    return TokenRequest(f"request-{number}", prompt, random.choice((8, 24)), number if number % 2 else None)


async def undisturbed() -> list[Seen]:
    async with process_mesh(prefills=1, decodes=1, settings=SETTINGS) as mesh:
        client = MeshClient(mesh.address)
        found = [await client.ask(request(number)) for number in range(REQUESTS)]
        await client.aclose()
    assert not any(seen.error for seen in found), found
    return found


async def damage_many(
    transport: str,
    count: int,
    random: Random,
    oracle: Sequence[Seen],
    *,
    mutants: Sequence[str] = (),
    on_damage: Callable[[], None] = lambda: None,
) -> DamagedRun:
    """Send requests until so many damages have struck."""
    run = DamagedRun(DamageTally(on_damage=on_damage))
    shared = transport == "shm"
    made = process_mesh(
        prefills=2,
        decodes=1,
        settings=SETTINGS | {"worker.transports": transport},
        mutants=mutants,
        damage=SHARE,
        span_pause_seconds=SPAN_PAUSE_SECONDS if shared else 0.0,
        on_event=run.tally.take,
    )
    async with made as mesh:
        client = MeshClient(mesh.address)

        async def stream() -> None:
            while run.tally.damages.total() < count:
                number = random.randrange(REQUESTS)
                if shared and random.random() < CANCELLED_SHARE:
                    await cancel_soon(client, request(number), random.uniform(0.0, 0.3))
                    continue
                judge(run, await client.ask(request(number)), oracle[number])

        await asyncio.gather(*(stream() for _ in range(STREAMS)))
        await client.aclose()
        run.leaked_pages = sum([pages_held(await worker.quiet()) for worker in mesh.workers])
        if run.problems or run.leaked_pages:
            print(mesh.last_lines(), file=sys.stderr)
    return run


def judge(run: DamagedRun, seen: Seen, wanted: Seen) -> None:
    run.requests += 1
    wrong = differences(seen.tokens, wanted.tokens, whole=not seen.error)
    run.wrong_tokens += wrong
    run.wrong_answers += bool(wrong) or (not seen.error and seen.logprob_bits != wanted.logprob_bits)
    if seen.error:
        run.problems[seen.error] += 1


async def cancel_soon(client: MeshClient, wanted: TokenRequest, seconds: float) -> None:
    call = client.call(wanted)
    await asyncio.sleep(seconds)
    call.cancel()


async def damage_over(
    transports: Sequence[str], count: int, seed: int, mutants: Sequence[str], on_damage: Callable[[], None]
) -> dict[str, Any]:
    oracle, runs = await undisturbed(), dict[str, DamagedRun]()
    for place, name in enumerate(transports):
        share = count // len(transports) + (place < count % len(transports))
        runs[name] = await damage_many(name, share, Random(seed + place), oracle, mutants=mutants, on_damage=on_damage)
    return {
        "corruptions": sum(run.tally.damages.total() for run in runs.values()),
        "wrong_tokens": sum(run.wrong_tokens for run in runs.values()),
        "wrong_answers": sum(run.wrong_answers for run in runs.values()),
        "requests": sum(run.requests for run in runs.values()),
        "leaked_pages": sum(run.leaked_pages for run in runs.values()),
        "kinds": {name: dict(sorted(run.tally.damages.items())) for name, run in runs.items()},
        "without": list(mutants),
        "problems": [
            f"{name}: {count} times {why}" for name, run in runs.items() for why, count in run.problems.items()
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.corruption", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many pages are damaged, late senders included")
    parser.add_argument("--transport", choices=("shm", "tcp", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests' order")
    parser.add_argument("--without", metavar="RULE", action="append", default=[], help="remove this guard")
    parser.add_argument("--json", action="store_true", help="end with one JSON object on stdout")
    given = parser.parse_args()
    transports = ["shm", "tcp"] if given.transport == "both" else [given.transport]
    columns = (TextColumn("damages"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=given.count)
        report = asyncio.run(damage_over(transports, given.count, given.seed, given.without, lambda: bar.advance(task)))
    for problem in report["problems"]:
        print(problem, file=sys.stderr)
    if given.json:
        print(json.dumps(report))
    else:
        print(f"{report['corruptions']} corruptions, {report['wrong_tokens']} wrong tokens, {report['kinds']}")
    return int(bool(report["wrong_answers"] or report["leaked_pages"] or report["problems"]))


if __name__ == "__main__":
    sys.exit(main())
