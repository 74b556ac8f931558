"""The receiving process of a measurement of transports: decode's half, over a pool of its own.

`cli/doctoring/transport_speed.py` starts it as `python -m cli.doctoring.transport_peer` and measures. Orders come as
lines of JSON on stdin, and each has one answer on stdout; `land` of a two-sided transport has a second one, once all
bytes are there."""

import asyncio
import json
import sys
import time
from typing import Any

from cli.local_mesh.loop import PreciseLoop
from kvtransfer.pool import SharedPool
from kvtransfer.transfer import Arrived, Receiver
from kvtransfer.transports import every_transport
from mesh.messages.page_shape import opaque_pages

HOST = "127.0.0.1"
TICKET, WRITER, RECEIVER = bytes(32), 1, 2  # stand-ins for those of a request, which a measurement lacks

Order = dict[str, Any]


class ReceivingPeer:
    def __init__(self) -> None:
        self._receivers: dict[str, Receiver] = {}
        self._pool: SharedPool | None = None

    async def obey(self, order: Order) -> Order:
        match order:
            case {"pool": [int(span_bytes), int(pages)], "names": [*names]}:
                return await self._open(span_bytes, pages, names)
            case {"land": str(name), "targets": [*targets]}:
                self._land(name, targets)
                return {"cpu_seconds": time.process_time()}
            case {"sum": [*targets]}:
                assert self._pool is not None
                return {"sum": sum(self._pool.checksums(targets, 0, 1)) % 2**64}
            case _:
                return {"cpu_seconds": time.process_time()}

    async def _open(self, span_bytes: int, pages: int, names: list[str]) -> Order:
        await self.aclose()
        self._pool = SharedPool(opaque_pages((1, span_bytes), content="speed"), pages, populate=True)
        every = every_transport("cpu", host=HOST, may_kill=False)
        self._receivers = {name: await every[name].receive(self._pool, RECEIVER) for name in names}
        return {"handles": {name: receiver.handle(WRITER).hex() for name, receiver in self._receivers.items()}}

    def _land(self, name: str, targets: list[int]) -> None:
        missing = set(range(len(targets)))

        def arrived(span: Arrived) -> None:
            missing.discard(span.page)
            if not missing:
                answer({"cpu_seconds": time.process_time()})

        self._receivers[name].open(TICKET, dict(enumerate(targets)), arrived)

    async def aclose(self) -> None:
        for receiver in self._receivers.values():
            await receiver.aclose()
        self._receivers = {}
        if self._pool is not None:
            self._pool.close()
            self._pool = None


def answer(content: Order) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Carry out orders until stdin ends, at the latest when the measuring process ends."""
    peer, orders = ReceivingPeer(), asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    try:
        while line := await orders.readline():
            answer(await peer.obey(json.loads(line)))
    finally:
        await peer.aclose()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(main())
