"""`python -m bench.start`: how long a mesh takes to start, and how much memory its host gives to it.

`baton up` with two workers of each tier and a model of Qwen2.5-0.5B's shape, packed weights cached: seconds from the
command until it says that every worker serves. In the last run long prompts and full batches are sent before the
memory is read, so that scratch memory and page tables are there. Status 1 when a target is missed."""

import argparse
import asyncio
import os
import re
import secrets
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from baton.client import Client
from bench.child import child
from bench.command import parser_of, run, say
from bench.models import SHAPE, make_once
from bench.processor import processor
from bench.start_figures import Host, Memory, memory_of, misses, report
from cli.local_mesh.ports import free_address
from mesh.config.common_config import default_cache_folder
from mesh.config.worker_config import WorkerConfig

WORKERS = 2  # number of workers of each tier
LONG_PROMPTS, LONG_TOKENS = 4, 1100
SHORT_PROMPTS, SHORT_TOKENS = 60, 16
ANSWER_TOKENS = 32
SERVES = "The mesh serves"  # in the line of `baton up` that reports a complete mesh
START_LIMIT_SECONDS = 120.0
ANSWER_SECONDS = 300.0
_NAME = re.compile(rb"(?:gateway|prefill|decode)\.name=(\S+)")


@dataclass(frozen=True, slots=True)
class Started:
    process: Process
    grpc_address: str
    begun_seconds: float
    start_seconds: float


class StartFailed(Exception):
    """The mesh did not start; the message has its last log lines."""


def main() -> None:
    parser = parser_of("start", __doc__)
    parser.add_argument("--runs", type=int, default=5, help="number of measured starts; the median counts")
    run(parser, bench, StartFailed)


async def bench(options: argparse.Namespace) -> dict[str, object]:
    runs = options.runs
    say(f"{processor()}, {cores()} cores; gateway and {WORKERS} workers of each tier; shape {SHAPE}")
    cache = default_cache_folder()
    model = await asyncio.to_thread(make_once, cache)
    async with started(model) as mesh:
        say(f"not counted, weights may be packed now: {mesh.start_seconds:.2f} s")
    starts, first = list[float](), list[float]()
    for number in range(1, runs + 1):
        async with started(model) as mesh:
            starts.append(mesh.start_seconds)
            first.append(await first_answer_seconds(mesh))
            say(f"{number}/{runs}  serves after {starts[-1]:.2f} s, first answer complete after {first[-1]:.2f} s")
            if number == runs:
                say("sending long prompts and full batches before the memory is read")
                await ask_much(mesh)
                host = read_host(mesh.process.pid, cache)
    figures = report(starts, first, host)
    for name, value in figures.items():
        say(f"  {name:<24} {value}")
    facts = {"workers": f"{WORKERS}P{WORKERS}D", "processor": processor(), "cores": cores()}
    return figures | {"missed": misses(figures)} | facts


@asynccontextmanager
async def started(model: Path) -> AsyncIterator[Started]:
    """A mesh started as a user starts it, and stopped as by Ctrl-C."""
    http, grpc, workers = free_address(), free_address(), free_address()
    addresses = ("--http", http, "--grpc", grpc, "--workers", workers)
    counts = ("--prefill", str(WORKERS), "--decode", str(WORKERS))
    command = ("-m", "cli", "up", "--model", str(model), *addresses, *counts)
    begun = time.monotonic()
    pipes = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": PIPE}
    async with child(sys.executable, *command, ends_by=signal.SIGINT, **pipes) as process:
        try:
            async with asyncio.timeout(START_LIMIT_SECONDS):
                await _until_it_serves(process)
        except TimeoutError:
            raise StartFailed(f"the mesh does not serve after {START_LIMIT_SECONDS} s") from None
        mesh = Started(process, grpc, begun, time.monotonic() - begun)
        drain = asyncio.create_task(_drain(process))
        yield mesh
    await drain


async def _until_it_serves(process: Process) -> None:
    assert process.stderr is not None
    lines = []
    async for raw in process.stderr:
        lines.append(raw.decode(errors="replace"))
        if SERVES in lines[-1]:
            return
    raise StartFailed("the mesh ended while it started:\n" + "".join(lines[-20:]))


async def _drain(process: Process) -> None:
    """Read the log lines: a full pipe would stop the mesh."""
    assert process.stderr is not None
    async for _ in process.stderr:
        pass


async def first_answer_seconds(mesh: Started) -> float:
    async with Client(mesh.grpc_address) as client:
        await _ask(client, SHORT_TOKENS, 1)
    return time.monotonic() - mesh.begun_seconds


async def ask_much(mesh: Started) -> None:
    lengths = [LONG_TOKENS] * LONG_PROMPTS + [SHORT_TOKENS] * SHORT_PROMPTS
    async with Client(mesh.grpc_address) as client, asyncio.TaskGroup() as group:
        for length in lengths:
            group.create_task(_ask(client, length, ANSWER_TOKENS))


async def _ask(client: Client, length: int, answer_tokens: int) -> None:
    prompt = list(secrets.token_bytes(length))
    await client.generate_text(prompt, timeout_seconds=ANSWER_SECONDS, max_tokens=answer_tokens, ignore_eos=True)


def read_host(up: int, cache: Path) -> Host:
    """Memory of `baton up` and its services while they serve."""
    workers, others = dict[str, Memory](), {"up": memory_of(Path(f"/proc/{up}/smaps").read_text())}
    files, pools = set[Path](), 0
    for pid in children(up):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        smaps = Path(f"/proc/{pid}/smaps").read_text()
        found = _NAME.search(command)
        if b" serve gateway " in command or found is None:
            others["gateway"] = memory_of(smaps)
            continue
        workers[found[1].decode()] = memory_of(smaps)
        files |= {cache / name for name in re.findall(r"[^/\s]+\.weights$", smaps, re.MULTILINE)}
        pools += WorkerConfig().pool_bytes
    return Host(workers, others, sum(file.stat().st_size for file in files), pools)


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            if int(after_name[1]) == parent:
                found.append(int(entry.name))
    return sorted(found)


def cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    main()
