"""`make receipts`: 100 receipts, replayed on a mesh of another shape and on one whose model has one other weight.

`python -m tests.receipts --json` ends with one JSON object. Status 1 unless every replay on the other shape is equal
and every one on the changed model is refused with the model's hash as the reason."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.receipts.cases import SEED, cases
from tests.receipts.meshes import OTHER_SHAPE, mesh_of, with_one_weight_changed
from tests.receipts.run import replay_all, take_all

COUNT = 100


async def run(count: int, seed: int) -> dict[str, Any]:
    chosen, began = list(cases(count, seed)), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as name, Progress(*columns, console=Console(stderr=True)) as bar:
        folder, task = Path(name), bar.add_task("receipts", total=3 * count)

        def done() -> None:
            bar.advance(task)

        async with mesh_of(folder, {}) as doors:
            taken = await take_all(doors, chosen, done)
        bar.update(task, description="replays on another shape")
        async with mesh_of(folder, OTHER_SHAPE) as doors:
            replayed = await replay_all(doors, taken, done)
        bar.update(task, description="replays with one weight changed")
        async with mesh_of(folder, {}, with_one_weight_changed(folder)) as doors:
            refused = await replay_all(doors, taken, done)
        for each, found in zip(taken, replayed, strict=True):
            for difference in found:
                bar.console.print(f"{each.case.kind}, {each.case.door}: {difference.text}", markup=False)
    reasons = Counter(found[0].what if found else "equal" for found in refused)
    return {
        "receipts": len(taken),
        "choices": sum(len(prompt["choices"]) for each in taken for prompt in each.receipt["prompts"]),
        "tokens": sum(c["tokens"] for each in taken for prompt in each.receipt["prompts"] for c in prompt["choices"]),
        "kinds": dict(Counter(f"{each.case.kind} {each.case.door}" for each in taken)),
        "equal": sum(not found for found in replayed),
        "refused": reasons["model_hash"],
        "reasons": dict(reasons),
        "reason": refused[0][0].text if refused and refused[0] else "",
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.receipts", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="so many receipts")
    parser.add_argument("--seed", type=int, default=SEED, help="seed of the requests")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    result = asyncio.run(run(options.count, options.seed))
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 0 if result["equal"] == result["refused"] == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
