"""Receiver and writer of `test_nccl.py`: this process receives, a child of it writes, and is killed in the end.

With `desert` the parent kills the child after the greeting, while this process waits for it to join."""

import asyncio
import random
import subprocess
import sys
import threading

import torch

from kvtransfer.device_pool import DevicePool
from kvtransfer.frames import WELCOME_BYTES, Greeting, PoolHandle
from kvtransfer.nccl import NcclTransport
from kvtransfer.nccl_library import UNIQUE_BYTES
from kvtransfer.transfer import Arrived, Span
from mesh.messages.page_shape import opaque_pages

SHAPE, PAGES, TICKET = opaque_pages((6, 4096), content="gpu-bf16-16-64-v1"), 32, bytes(32)


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


async def wait_in_vain() -> None:
    pool = DevicePool(SHAPE, PAGES)
    receiver = await NcclTransport(random.SystemRandom(), handshake_seconds=30.0).receive(pool, 2)
    command = [sys.executable, "-m", "tests.gpu.nccl_peers", "desert", receiver.handle(1).hex()]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    await child.stdout.readline()
    await asyncio.sleep(2.0)
    print("joining" if receiver._talks else "not joining", flush=True)
    child.kill()
    await child.wait()
    async with asyncio.timeout(20):  # less than the 30 seconds of the handshake
        while receiver._talks or any(thread.name.startswith("baton-nccl") for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
    print(*receiver.refused, flush=True)
    await receiver.aclose()
    pool.checksums(range(PAGES), 0, 6)  # the device still works


async def desert(handle: str) -> None:
    """Greets, is welcomed, and does not join."""
    target = PoolHandle.unpack(bytes.fromhex(handle))
    reader, writer = await asyncio.open_connection(*target.address.split(":"))
    writer.write(Greeting(target.token, 1, target.receiver, SHAPE).pack())
    await reader.readexactly(WELCOME_BYTES + UNIQUE_BYTES)
    print("welcomed", flush=True)
    await asyncio.sleep(600)  # until it is killed


async def write(handle: str) -> None:
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(1)
    pool = DevicePool(SHAPE, PAGES)
    pool.memory.random_(0, 256)
    writer = await NcclTransport(random.SystemRandom(), handshake_seconds=30.0).connect(bytes.fromhex(handle), pool, 1)
    spans = [Span(index, PAGES - 1 - index, index, 2, 3) for index in range(PAGES)]
    print(*await writer.write(TICKET, spans, 0), flush=True)
    await asyncio.sleep(600)  # until it is killed


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            asyncio.run(receive())
        case ["desert"]:
            asyncio.run(wait_in_vain())
        case ["desert", handle]:
            asyncio.run(desert(handle))
        case [handle]:
            asyncio.run(write(handle))
