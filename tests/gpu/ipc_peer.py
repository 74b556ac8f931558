"""The writer of `test_runner.py` in a process of its own: it writes random pages to the pool that its handle names."""

import asyncio
import random
import sys
import time

from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.device_pool import DevicePool
from kvtransfer.transfer import Span
from mesh.messages.page_shape import opaque_pages

SHAPE, PAGES = opaque_pages((6, 4096), content="gpu-bf16-16-64-v1"), 32


async def main() -> None:
    pool = DevicePool(SHAPE, PAGES)
    pool.memory.random_(0, 256)
    writer = await CudaIpc(random.SystemRandom()).connect(bytes.fromhex(sys.argv[1]), pool, 1)
    spans = [Span(index, PAGES - 1 - index, index, 2, 3) for index in range(PAGES)]
    print(*await writer.write(bytes(32), spans, 0), flush=True)
    time.sleep(600)  # until it is killed


if __name__ == "__main__":
    asyncio.run(main())
