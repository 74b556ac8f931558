"""`make clients`: real clients against a running mesh with the built-in model, one line each.

`python -m tests.clients --json` makes an environment for each client, starts a mesh, runs the clients one after the
other, and ends with one JSON object. Status 1 when a client fails or cannot be installed."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from cli.local_mesh.ports import free_address
from tests.clients.environments import BUILD, InstallFailed, command_of
from tests.clients.running import TriedClient, try_client
from tests.clients.table import CLIENTS, RealClient
from tests.schemas.__main__ import built_in_mesh

LAST_LINES = 20  # lines that are shown of a failed client's output


async def run(chosen: Sequence[RealClient]) -> list[TriedClient]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("install", total=2 * len(chosen))
        commands = [await _installed(client, bar, task) for client in chosen]
        grpc, workers = free_address(), free_address()
        ports = {"gateway.grpc_address": grpc, "gateway.worker_address": workers}
        async with built_in_mesh(folder, **ports) as url:
            http, tried = url.removeprefix("http://"), list[TriedClient]()
            for client, command in zip(chosen, commands, strict=True):
                bar.update(task, description=client.name)
                out = BUILD / "out" / client.name
                tried.append(await try_client(client, command, http=http, grpc=grpc, out=out))
                bar.console.print(shown(tried[-1]), markup=False, highlight=False, soft_wrap=True)
                bar.advance(task)
    return tried


async def _installed(client: RealClient, bar: Progress, task: TaskID) -> list[str] | InstallFailed:
    bar.update(task, description=f"install {client.requirements.stem}")
    try:
        return await asyncio.to_thread(command_of, client)
    except InstallFailed as error:
        return error
    finally:
        bar.advance(task)


def shown(tried: TriedClient) -> str:
    """The line of a client; below it the end of its output, if it failed."""
    ends = tried.problem.splitlines()[-LAST_LINES:]
    return "\n".join([tried.line, *(f"        {line}" for line in ends)])


def as_json(tried: Sequence[TriedClient], seconds: float) -> dict[str, Any]:
    clients = {
        each.name: {"ok": not each.problem, "version": each.version, "seconds": each.seconds, "tries": each.tries}
        for each in tried
    }
    return {"clients": clients, "failed": [each.name for each in tried if each.problem], "seconds": round(seconds, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[client.name for client in CLIENTS], help="only these clients")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options, began = parser.parse_args(), time.monotonic()
    chosen = [client for client in CLIENTS if options.only is None or client.name in options.only]
    tried = asyncio.run(run(chosen))
    failed = sum(bool(each.problem) for each in tried)
    if options.json:
        print(json.dumps(as_json(tried, time.monotonic() - began)))
    else:
        print(f"{len(tried) - failed} of {len(tried)} clients work")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
