"""`python -m bench.gateway_served KEY=VALUE ...`: the gateway that bench/gateway.py measures, in a process of its own.

It is the product's gateway on the product's event loop. A timer beside it notices how late the loop is; a line on
standard input asks for the longest delay since the last one and for the memory that the process has."""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from cli.local_mesh.loop import PreciseLoop
from cli.local_mesh.serve import COLLECT, telemetry_of
from cli.local_mesh.services import with_model
from gateway.main import serve
from mesh.config.settings import read_settings

TICK_SECONDS = 0.005


class LoopWatch:
    """Notices how long the loop stands still."""

    def __init__(self) -> None:
        self.longest_seconds = self.longest_busy_seconds = 0.0  # by the clock, and of the loop's own processor time

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            due, busy = clock() + TICK_SECONDS, time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.longest_seconds = max(self.longest_seconds, clock() - due)
            self.longest_busy_seconds = max(self.longest_busy_seconds, time.thread_time() - busy)

    async def answer(self) -> None:
        orders = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
        while await orders.readline():
            facts = {
                "longest_block_ms": self.longest_seconds * 1000,
                "longest_busy_ms": self.longest_busy_seconds * 1000,
                "rss_bytes": rss_bytes(),
            }
            self.longest_seconds = self.longest_busy_seconds = 0.0
            print(json.dumps(facts), flush=True)


def rss_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


async def main(overrides: dict[str, str]) -> None:
    config, watch = with_model(read_settings(None, {}, overrides).gateway()), LoopWatch()
    served = asyncio.ensure_future(serve(config, telemetry_of(config)))
    watching, answering = asyncio.ensure_future(watch.run()), asyncio.ensure_future(watch.answer())
    await asyncio.wait((served, answering), return_when=asyncio.FIRST_COMPLETED)  # its parent closes the pipe
    for task in (served, watching, answering):
        task.cancel()
    await asyncio.gather(served, watching, answering, return_exceptions=True)


if __name__ == "__main__":
    settings = {key: value for key, _, value in (pair.partition("=") for pair in sys.argv[1:])}
    gc.set_threshold(*COLLECT)  # as `baton serve` does
    gc.freeze()
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(main(settings))
