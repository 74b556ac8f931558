"""The writing process of `python -m tests.rdma`: prefill's half over a pool of its own.

Orders come as lines of JSON on stdin, each has one answer on stdout. `write` moves spans as a worker does. `insist`
begins a writer that no end of its connection stops: it writes the whole pool again and again, with bytes of its own in
each pass, and goes on after every error."""

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from threading import Event
from typing import Any

from kvtransfer.nixl_agent import AgentError, RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma_writer import RdmaWriter
from kvtransfer.transfer import Span
from tests.rdma.fabric import PAGES, SHAPE, TICKET, WRITER, content, filled_pool, transport

Order = dict[str, Any]
LATE_SECONDS = 2.0  # longest time for a late write before the next one is tried


@dataclass
class Insisting:
    """A writer's thread that never gives up."""

    writer: RdmaWriter
    pool: SharedPool
    passes: int = 0
    failures: int = 0
    error: str = ""

    def run(self, over: Event) -> None:
        whole = [Span(page, page, page, 0, SHAPE.layers) for page in range(PAGES)]
        while not over.is_set():
            try:
                self.pool.buffer[:] = bytes([self.passes % 255 + 1]) * len(self.pool.buffer)
                self.writer._end.send(whole, Event().wait, LATE_SECONDS)
                self.passes += 1
            except AgentError as error:
                self.failures, self.error = self.failures + 1, str(error)
                over.wait(0.02)


class WritingProcess:
    def __init__(self, fabric: RdmaFabric) -> None:
        self._transport = transport(fabric)
        self._pool = SharedPool(SHAPE, PAGES)
        self._writer: RdmaWriter | None = None
        self._insisting: Insisting | None = None
        self._over = Event()

    async def obey(self, order: Order) -> Order:
        match order:
            case {"connect": str(handle)}:
                self._pool = filled_pool(0)
                self._writer = await self._transport.connect(bytes.fromhex(handle), self._pool, WRITER)
                return {}
            case {"write": [*rows], "content": int(number)}:
                return await self._write([Span(*row) for row in rows], number)
            case {"insist": True}:
                assert self._writer is not None
                self._insisting = Insisting(self._writer, self._pool)
                self._writer._sender.submit(self._insisting.run, self._over)
                return {}
            case _:
                found = self._insisting
                return {"passes": found.passes, "failures": found.failures, "error": found.error} if found else {}

    async def _write(self, spans: list[Span], number: int) -> Order:
        assert self._writer is not None
        self._pool.buffer[:] = content(number)
        begun = time.perf_counter()
        sums = await self._writer.write(TICKET, spans, 0)
        return {"seconds": time.perf_counter() - begun, "sums": sums}

    def close(self) -> None:
        self._over.set()
        if self._writer is not None:
            self._writer.close()


async def main(fabric: RdmaFabric) -> None:
    process, orders = WritingProcess(fabric), asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    try:
        while line := await orders.readline():
            print(json.dumps(await process.obey(json.loads(line))), flush=True)
    finally:
        process.close()


if __name__ == "__main__":
    asyncio.run(main(RdmaFabric(*sys.argv[1:])))
