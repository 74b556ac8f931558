"""The kernel's TCP without a product around it: a plain C loop between two processes (bench/native/tcp_loop.c).

Its spans, memory, number of connections and socket options are those of the product's transport, so its speed is what
the product could reach at best. It computes no checksums and knows no tickets. The compiler of the kernels builds it
when it is first used, and again when its source changes."""

import asyncio
import hashlib
import os
import subprocess
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from baton_kernels import build
from bench.child import child
from kvtransfer.portion_reader import MOST_TCP_FRAMES
from kvtransfer.tcp import TcpOptions
from kvtransfer.tcp_writer import LOOPBACK_SEND_BUFFER_BYTES

SOURCE = Path(__file__).parent / "native/tcp_loop.c"
BUILT = Path(__file__).resolve().parents[1] / "build/native"
FLAGS = ("-x", "c", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")
PASS_SECONDS = 60.0


class RawTcpFailed(Exception):
    """The C loop did not compile, or ended."""


class RawTcp:
    """The loop for spans of one size."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._orders, self._answers = process.stdin, process.stdout

    async def seconds(self) -> float:
        """How long one pass takes."""
        self._orders.write(b"\n")
        return await self.answer()

    async def answer(self) -> float:
        async with asyncio.timeout(PASS_SECONDS):
            line = await self._answers.readline()
        if not line:
            raise RawTcpFailed("the C loop has ended; its last line is above")
        return int(line) / 1e9


@asynccontextmanager
async def raw_tcp(span_bytes: int, targets: Sequence[int]) -> AsyncIterator[RawTcp]:
    """The spans are the even pages of a pool with twice as many; `targets` are their pages at the receiver. The loop
    has moved them once, and compared them."""
    connections, batch = TcpOptions().connections, MOST_TCP_FRAMES
    options = (span_bytes, 2 * len(targets), connections, LOOPBACK_SEND_BUFFER_BYTES, batch)
    async with child(str(compiled()), *map(str, options), stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(" ".join(map(str, (len(targets), *targets))).encode() + b"\n")
        loop = RawTcp(process)
        await loop.answer()
        yield loop


def compiled() -> Path:
    compiler = build.compiler()
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode() + SOURCE.read_bytes()).hexdigest()[:16]
    program = BUILT / f"tcp_loop-{digest}"
    if not program.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        made = program.with_suffix(f".{os.getpid()}.tmp")  # another process may build it, too
        done = subprocess.run([compiler, *FLAGS, "-o", made, SOURCE], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RawTcpFailed(f"{SOURCE.name} does not compile:\n{done.stderr}")
        made.replace(program)
    return program
