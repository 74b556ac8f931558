"""Measures transports between two processes of this host, beside memcpy: `baton doctor` and `bench.transport` use it.

This process writes, as prefill does; `cli/doctoring/transport_peer.py` receives, as decode does, over the product's
transports. Each pass moves the same spans, from places apart to places in random order. A pass of memcpy inside this
process stands before and after each pass of a transport, so that it is compared with the machine as it is at that
moment; a rival that the caller hands in is compared in the same way."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import mean
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from cli.doctoring.transport_peer import HOST, TICKET, WRITER
from kvtransfer.pool import SharedPool
from kvtransfer.transfer import Span, TransferError, Writer
from kvtransfer.transports import every_transport
from mesh.messages.page_shape import opaque_pages

ANSWER_SECONDS = 60.0  # how long the other process may take for one pass


@dataclass(slots=True)
class TransportFigures:
    """Passes of one transport."""

    seconds: list[float] = field(default_factory=list)
    memcpy_share: list[float] = field(default_factory=list)  # its speed as a share of memcpy's around it
    cpu_seconds: list[float] = field(default_factory=list)  # processor time of both processes in each pass
    rival_seconds: list[float] = field(default_factory=list)  # mean of the rival's passes before and behind each pass
    rival_share: list[float] = field(default_factory=list)  # its speed as a share of the rival's around it

    def add(self, seconds: float, cpu_seconds: float, memcpy: Sequence[float], rival: Sequence[float]) -> None:
        """A pass, and what took how long right before and behind it."""
        self.seconds.append(seconds)
        self.cpu_seconds.append(cpu_seconds)
        self.memcpy_share.append(mean(memcpy) / seconds)
        if rival:
            self.rival_seconds.append(mean(rival))
            self.rival_share.append(mean(rival) / seconds)


@dataclass(slots=True)
class SpeedFigures:
    """Passes over spans of one size."""

    span_bytes: int
    pass_bytes: int
    memcpy_seconds: list[float] = field(default_factory=list)
    transports: dict[str, TransportFigures] = field(default_factory=dict)


class Rival(Protocol):
    """Something that moves the same spans, for a transport to be compared with."""

    async def seconds(self) -> float:
        """How long one pass takes."""


Rivals = Mapping[str, Callable[[int, Sequence[int]], AbstractAsyncContextManager[Rival]]]  # (span bytes, targets)


class ReceivingProcess:
    """The receiving process, which this one orders through pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._into, self._answers = process.stdin, process.stdout

    async def ask(self, **order: Any) -> dict[str, Any]:
        self._into.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        async with asyncio.timeout(ANSWER_SECONDS):
            line = await self._answers.readline()
        if not line:
            raise TransferError("the receiving process has ended; its last lines are above")
        content: dict[str, Any] = json.loads(line)
        return content


@asynccontextmanager
async def receiving_process() -> AsyncIterator[ReceivingProcess]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = (sys.executable, "-m", "cli.doctoring.transport_peer")
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, env=environment, limit=1 << 24
    )
    try:
        yield ReceivingProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def measure(
    peer: ReceivingProcess,
    names: Sequence[str],
    *,
    span_bytes: int,
    pass_bytes: int,
    passes: int,
    rivals: Rivals = MappingProxyType({}),
    each: Callable[[], object] = lambda: None,
) -> SpeedFigures:
    """Passes of every transport over `pass_bytes` in spans of this size; `each` is called after every round. `rivals`:
    by the name of the transport that is compared with it."""
    count = max(2, pass_bytes // span_bytes)
    figures = SpeedFigures(span_bytes, count * span_bytes, transports={name: TransportFigures() for name in names})
    async with AsyncExitStack() as stack:
        shape = opaque_pages((1, span_bytes), content="speed")
        source, copy = (SharedPool(shape, 2 * count, populate=True) for _ in range(2))
        stack.callback(source.close)
        stack.callback(copy.close)
        np.frombuffer(source.buffer, np.uint8)[:] = np.resize(np.arange(251, dtype=np.uint8), len(source.buffer))
        targets = Random(1).sample(range(2 * count), count)
        spans = [Span(index, 2 * index, target, 0, 1) for index, target in enumerate(targets)]
        handles = (await peer.ask(pool=[span_bytes, 2 * count], names=list(names)))["handles"]
        every = every_transport("cpu", host=HOST)
        writers: dict[str, Writer] = {}
        for name in names:
            writers[name] = await every[name].connect(bytes.fromhex(handles[name]), source, WRITER)
            stack.callback(writers[name].close)
            await _verified(peer, name, writers[name], spans, targets)  # not counted: memory and connections get warm
        rival = {
            name: await stack.enter_async_context(rivals[name](span_bytes, targets)) for name in names if name in rivals
        }
        for number in range(passes):
            for name in names if number % 2 else reversed(names):
                around = [await rival[name].seconds()] if name in rival else []
                memcpy = [_memcpy_seconds(source, copy, targets, span_bytes)]
                found = await _pass(peer, name, writers[name], spans, targets, number)
                memcpy.append(_memcpy_seconds(source, copy, targets, span_bytes))
                around += [await rival[name].seconds()] if name in rival else []
                figures.transports[name].add(*found, memcpy, around)
                figures.memcpy_seconds.append(mean(memcpy))
            each()
    return figures


async def _pass(
    peer: ReceivingProcess, name: str, writer: Writer, spans: Sequence[Span], targets: list[int], number: int
) -> tuple[float, float]:
    """Seconds until all bytes are in the receiver's pages, and the processors' seconds of both processes."""
    theirs = (await peer.ask(land=name, targets=targets))["cpu_seconds"]
    ours, begun = time.process_time(), time.perf_counter()
    await writer.write(TICKET, spans, number)
    landed = None if writer.one_sided else await peer.answer()
    seconds, ours = time.perf_counter() - begun, time.process_time() - ours
    landed = landed or await peer.ask()
    return seconds, ours + landed["cpu_seconds"] - theirs


async def _verified(
    peer: ReceivingProcess, name: str, writer: Writer, spans: Sequence[Span], targets: list[int]
) -> None:
    """A pass whose checksums are compared: a fast transport that loses bytes is no transport."""
    await peer.ask(land=name, targets=targets)
    sums = await writer.write(TICKET, spans, 0)
    if not writer.one_sided:
        await peer.answer()
    if (await peer.ask(sum=targets))["sum"] != sum(sums) % 2**64:
        raise TransferError(f"{name}: the pages that arrived are not those that were sent")


def _memcpy_seconds(source: SharedPool, copy: SharedPool, targets: list[int], span_bytes: int) -> float:
    """One pass of the C library's memcpy over the same spans, in this thread."""
    kind = np.dtype((np.void, span_bytes))
    from_, to = np.frombuffer(source.buffer, kind)[::2], np.frombuffer(copy.buffer, kind)
    places, begun = np.array(targets), time.perf_counter()
    to[places] = from_
    return time.perf_counter() - begun
