"""The other process of `tests/mesh/test_transports.py`: a writer that never stops pushing, or a receiver that waits to
be killed.

python transport_peer.py write|receive shm|tcp FOLDER; a handle in hex travels over stdin or stdout."""

import asyncio
import itertools
import random
import sys
from pathlib import Path

import numpy as np

from kvtransfer.pool import SharedPool
from kvtransfer.shm import SharedMemory
from kvtransfer.tcp import Tcp
from kvtransfer.transfer import Span, Transport
from mesh.messages.page_shape import opaque_pages

SHAPE, PAGES = opaque_pages((8, 16384), content="test"), 64
TICKET, WRITER, RECEIVER = bytes(range(32)), 0xA11CE, 0xB0B


def transport(name: str, folder: str) -> Transport:
    system = random.SystemRandom()
    return SharedMemory(system, folder=Path(folder)) if name == "shm" else Tcp(system)


async def write(way: Transport, handle: bytes) -> None:
    """Pass after pass over all pages, each pass with bytes of its own: 1, 2, 3 ..."""
    pool = SharedPool(SHAPE, PAGES)
    writer = await way.connect(handle, pool, WRITER)
    for number in itertools.count():
        np.frombuffer(pool.buffer, np.uint8)[:] = number % 255 + 1
        for page in range(PAGES):
            await writer.write(TICKET, [Span(page, page, page, 0, 4), Span(page, page, page, 4, 4)], number)
        if number == 0:
            print("pushing", flush=True)


async def receive(way: Transport) -> None:
    receiver = await way.receive(SharedPool(SHAPE, PAGES), RECEIVER)
    receiver.open(TICKET, {page: page for page in range(PAGES)}, lambda arrived: None)
    print(receiver.handle(WRITER).hex(), flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    role, name, folder = sys.argv[1:]
    if role == "write":
        asyncio.run(write(transport(name, folder), bytes.fromhex(sys.stdin.readline())))
    else:
        asyncio.run(receive(transport(name, folder)))
