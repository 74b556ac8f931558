"""`make schemas`: answers of the built-in model to every schema of tests/schemas/cases.py, greedy and sampled.

`python -m tests.schemas --json` starts a mesh, asks it, and ends with one JSON object. Status 1 when an answer that
ended by itself does not validate, or when a keyword of the supported list stands in fewer than five schemas."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli.local_mesh.own_mesh import own_mesh
from gateway.structured.schema import SUPPORTED
from tests.schemas.cases import cases, keywords
from tests.schemas.run import Judged, ask_all

FEWEST = 5  # schemas for each keyword


@asynccontextmanager
async def built_in_mesh(folder: str, **more: str) -> AsyncIterator[str]:
    """The URL of a mesh with the built-in pair, one worker of each tier."""
    async with own_mesh({"cache_folder": folder, **more}) as gateway:
        yield f"http://{gateway.http_address}"


def coverage() -> dict[str, int]:
    """Keyword -> schemas in which it stands."""
    found = Counter(name for _, schema in cases() for name in set(keywords(schema)))
    return {name: found[name] for name in SUPPORTED}


async def run(*, count: int | None) -> dict[str, Any]:
    chosen, began = list(cases())[:count], time.monotonic()
    columns = (TextColumn("schemas"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=2 * len(chosen))

        def shown(answered: Judged) -> None:
            bar.advance(task)
            if answered.problem:
                bar.console.print(f"{answered.name} at {answered.temperature}: {answered.problem}", markup=False)

        async with built_in_mesh(folder) as url:
            answers = await ask_all(url, chosen, on_answer=shown)
    rare = {name: times for name, times in coverage().items() if times < FEWEST}
    return {
        "schemas": len(chosen),
        "answers": len(answers),
        "finished": sum(answered.finished for answered in answers),
        "invalid": sum(bool(answered.problem) for answered in answers),
        "rare_keywords": rare,
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.schemas", description=__doc__)
    parser.add_argument("--count", type=int, help="only so many of the schemas")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    result = asyncio.run(run(count=options.count))
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 1 if result["invalid"] or result["rare_keywords"] else 0


if __name__ == "__main__":
    sys.exit(main())
