"""Receiver and writer of `test_nccl.py`: this process receives, a child of it writes, and is killed in the end."""

import asyncio
import random
import subprocess
import sys

import torch

from kvtransfer.device_pool import DevicePool
from kvtransfer.nccl import NcclTransport
from kvtransfer.transfer import Arrived, PageShape, Span

SHAPE, PAGES, TICKET = PageShape(((6, 4096),), "gpu-bf16-16-64-v1"), 32, bytes(32)


async def receive() -> None:
    pool, arrived = DevicePool(SHAPE, PAGES), list[Arrived]()
    receiver = await NcclTransport(random.SystemRandom(), handshake_seconds=30.0).receive(pool, 2)
    receiver.open(TICKET, {index: index for index in range(PAGES)}, arrived.append)
    command = [sys.executable, "-m", "tests.gpu.nccl_peers", receiver.handle(1).hex()]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    sums = tuple(map(int, (await child.stdout.readline()).split()))
    async with asyncio.timeout(30):
        while len(arrived) < PAGES:
            await asyncio.sleep(0.01)
    print("equal" if sums == pool.checksums(range(PAGES), 2, 3) else "other bytes", flush=True)
    child.kill()
    await child.wait()
    async with asyncio.timeout(30):
        while receiver._talks:
            await asyncio.sleep(0.01)
    print("broken", flush=True)
    await receiver.aclose()


async def write(handle: str) -> None:
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(1)
    pool = DevicePool(SHAPE, PAGES)
    pool.memory.random_(0, 256)
    writer = await NcclTransport(random.SystemRandom()).connect(bytes.fromhex(handle), pool, 1)
    spans = [Span(index, PAGES - 1 - index, index, 2, 3) for index in range(PAGES)]
    print(*await writer.write(TICKET, spans, 0), flush=True)
    await asyncio.sleep(600)  # until it is killed


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]) if len(sys.argv) > 1 else receive())
