"""The receiving process of `python -m tests.rdma`: decode's half, which compares every byte and tries to be harmed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from kvtransfer.nixl_agent import RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma import RdmaReceiver
from kvtransfer.transfer import Span
from tests.rdma.fabric import PAGES, RECEIVER, SHAPE, TICKET, WRITER, content, transport

ANSWER_SECONDS = 240.0  # emulated machines are slow
LATE_SECONDS = 3.0  # how long a late writer goes on


class WriterProcess:
    """The writing process, which this one orders through pipes."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child

    async def ask(self, **order: Any) -> dict[str, Any]:
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.write(json.dumps(order).encode() + b"\n")
        line = await asyncio.wait_for(self.child.stdout.readline(), ANSWER_SECONDS)
        if not line:
            raise RuntimeError("the writing process has ended; its last lines are above")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def connected(fabric: RdmaFabric) -> AsyncIterator[tuple[WriterProcess, RdmaReceiver, SharedPool]]:
    """A writing process that is connected to an empty pool of this one."""
    pool = SharedPool(SHAPE, PAGES)
    receiver = await transport(fabric).receive(pool, RECEIVER)
    quiet = {"NIXL_LOG_LEVEL": "FATAL"}  # a late writer fails very often
    environment = {**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = (sys.executable, "-m", "tests.rdma.writing", fabric.ways, fabric.devices)
    child = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, env=environment, limit=1 << 24)
    try:
        process = WriterProcess(child)
        await process.ask(connect=receiver.handle(WRITER).hex())
        yield process, receiver, pool
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()
        await receiver.aclose()
        pool.close()


def rounds(random: Random) -> list[list[Span]]:
    """Whole pages in order, whole pages at random, single layers at random, and one small layer."""
    order = random.sample(range(PAGES), PAGES)
    layers = [(page, layer) for page in range(PAGES) for layer in range(SHAPE.layers)]
    few = random.sample(layers, len(layers) // 3)
    return [
        [Span(page, page, page, 0, SHAPE.layers) for page in range(PAGES)],
        [Span(page, page, order[page], 0, SHAPE.layers) for page in range(0, PAGES, 2)],
        [Span(page, page, order[page], layer, 1) for page, layer in few],
        [Span(0, 5, 7, SHAPE.layers - 1, 1)],
    ]


async def move_pages(fabric: RdmaFabric) -> dict[str, Any]:
    """Write every round into a pool of zeros, and compare every byte of it, also those that no span names."""
    pages = moved = wrong = 0
    seconds = 0.0
    async with connected(fabric) as (writer, receiver, pool):
        for number, spans in enumerate(rounds(Random(7))):
            pool.buffer[:] = bytes(len(pool.buffer))
            rows = [[s.index, s.source, s.target, s.first_layer, s.layers] for s in spans]
            answer = await writer.ask(write=rows, content=number)
            wanted = SharedPool(SHAPE, PAGES)
            source = memoryview(content(number))
            for span in spans:
                start, size = SHAPE.place(span.first_layer, span.layers)
                begin = span.source * SHAPE.page_bytes + start
                wanted.view(span.target, span.first_layer, span.layers)[:] = source[begin : begin + size]
                moved += size
            wrong += differing(pool.buffer, wanted.buffer)
            sums = [pool.checksum(span.target, span.first_layer, span.layers) for span in spans]
            wrong += sum(ours != theirs for ours, theirs in zip(sums, answer["sums"], strict=True))
            pages, seconds = pages + len({span.target for span in spans}), seconds + answer["seconds"]
            wanted.close()
        receiver.close(TICKET)
    return {"pages": pages, "bytes": moved, "wrong_bytes": wrong, "gb_per_s": round(moved / seconds / 1e9, 4)}


@dataclass(frozen=True, slots=True)
class LateWriter:
    """A writer that was stopped in mid-push, counted as silent, and went on."""

    silent: bool
    tries_after: int  # writes that it began after that
    landed_bytes: int  # bytes of the pool that changed after that
    error: str


async def late_writer(fabric: RdmaFabric) -> LateWriter:
    """Stop a writer in mid-push, wait for `silent`, put other bytes into the pool as another request would, and let the
    writer go on."""
    async with connected(fabric) as (writer, receiver, pool):
        await writer.ask(insist=True)
        await until(lambda: any(pool.buffer[-SHAPE.page_bytes :]), "the writer's first pass")
        writer.child.send_signal(signal.SIGSTOP)
        silent = await receiver.silent(WRITER, ANSWER_SECONDS)
        pool.buffer[:] = before = bytes(len(pool.buffer))
        writer.child.send_signal(signal.SIGCONT)
        then = await writer.ask()
        tries, begun = 0, asyncio.get_running_loop().time()
        while tries < 2 or asyncio.get_running_loop().time() - begun < LATE_SECONDS:
            await asyncio.sleep(0.1)
            now = await writer.ask()
            tries = now["passes"] + now["failures"] - then["passes"] - then["failures"]
        return LateWriter(silent, tries, differing(pool.buffer, memoryview(before)), now["error"])


def differing(found: memoryview, wanted: memoryview) -> int:
    return int(np.count_nonzero(np.frombuffer(found, np.uint8) != np.frombuffer(wanted, np.uint8)))


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise RuntimeError(f"{what} does not come") from None
