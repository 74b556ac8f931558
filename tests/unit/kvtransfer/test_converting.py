"""Transports between pools whose pages differ: the receiver's pages, and the checksums, are those of its own form."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvtransfer.conversion import pages_under
from kvtransfer.cuda_ipc import CudaIpc
from kvtransfer.memory import Fabric, MemoryPool, MemoryTransport
from kvtransfer.nccl import NcclTransport
from kvtransfer.pool import SharedPool
from kvtransfer.shm import SharedMemory
from kvtransfer.span_reader import Converted
from kvtransfer.tcp import Tcp
from kvtransfer.transfer import Arrived, Pool, Span, TransferError, Transport
from mesh.messages.page_shape import PageShape
from tests.unit.kvtransfer.on_device import FakeCommunicators, OpenPool
from tests.unit.kvtransfer.test_conversion import converted, pages_of, same, text, written

TICKET, TOKENS = bytes(range(32)), 83
RANDOM = random.SystemRandom()
TRANSPORTS: dict[str, Callable[[Path], Transport]] = {
    "shm": lambda folder: SharedMemory(RANDOM, folder=folder),
    "tcp": lambda folder: Tcp(RANDOM),
    "memory": lambda folder: MemoryTransport(Fabric(random.Random(1)), "memory", False),
}
FORMS = {
    "16 > 32": (pages_of("pairs-v1", 16), pages_of("pairs-v1", 32)),
    "32 > 16": (pages_of("pairs-v1", 32), pages_of("pairs-v1", 16)),
    "64 > 16, other tiles": (pages_of("gpu-v1", 64), pages_of("pairs-v1", 16)),
    "16 > 16, other tiles": (pages_of("pairs-v1", 16), pages_of("gpu-v1", 16)),
    "16 > 64, half the heads": (pages_of("pairs-v1", 16), pages_of("pairs-v1", 64, first=2, count=2)),
}


def open_pool(name: str, shape: PageShape) -> Any:
    return MemoryPool(shape, 16) if name == "memory" else SharedPool(shape, 16)


def content(pool: Pool, page: int) -> Any:
    return np.frombuffer(pool.view(page, 0, pool.shape.layers), np.uint8).copy()


def spans_of(source: PageShape, target: PageShape, first: int, layers: int) -> list[Span]:
    """Every page of the prompt: its own pages have the ids 3, 4 ..., the receiver's count down from 15."""
    spans = []
    for index in range(-(-TOKENS // target.page_tokens)):
        under = pages_under(index, TOKENS, source_tokens=source.page_tokens, target_tokens=target.page_tokens)
        page, *behind = (3 + each for each in under)
        spans.append(Span(index, page, 15 - index, first, layers, tuple(behind)))
    return spans


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", TRANSPORTS)
async def test_layer_by_layer_a_pool_gets_the_pages_of_its_own_form(name: str, form: str, tmp_path: Path) -> None:
    (mine, theirs), transport = FORMS[form], TRANSPORTS[name](tmp_path)
    source, target, what = open_pool(name, mine), open_pool(name, theirs), text(TOKENS, "bf16")
    for place, page in enumerate(written(mine, what)):
        source.view(3 + place, 0, mine.layers)[:] = page.tobytes()
    receiver, arrived = await transport.receive(target, 2), list[Arrived]()
    writer = await transport.connect(receiver.handle(1), source, 1)
    assert writer.shape == theirs
    try:
        groups = [spans_of(mine, theirs, first, layers) for first, layers in ((2, 3), (0, 1), (1, 1))]
        receiver.open(TICKET, {span.index: span.target for span in groups[0]}, arrived.append)
        sums = [await writer.write(TICKET, spans, 0) for spans in groups]
        while not writer.one_sided and len(arrived) < sum(map(len, groups)):
            await asyncio.sleep(0.001)
        expected = written(theirs, what)
        assert same([content(target, span.target) for span in groups[0]], expected)
        for spans, found in zip(groups, sums, strict=True):
            assert found == tuple(target.checksum(s.target, s.first_layer, s.layers) for s in spans)
        assert writer.bytes_written == sum(map(len, expected))
        if not writer.one_sided:
            assert {each.checksum for each in arrived} == {each for found in sums for each in found}
        assert not content(target, 0).any(), "nothing else is touched"
    finally:
        writer.close()
        await receiver.aclose()
        for pool in (source, target) if name != "memory" else ():
            pool.close()


@pytest.mark.parametrize("name", ["shm", "tcp"])
async def test_a_further_page_outside_the_pool_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    (mine, theirs), transport = FORMS["16 > 32"], TRANSPORTS[name](tmp_path)
    source, target = open_pool(name, mine), open_pool(name, theirs)
    receiver = await transport.receive(target, 2)
    writer = await transport.connect(receiver.handle(1), source, 1)
    try:
        for page in (-1, 16, 1 << 40):
            with pytest.raises(IndexError, match="outside pools"):
                await writer.write(TICKET, [Span(0, 3, 5, 0, 5, (page,))], 0)
        assert writer.bytes_written == 0 and not content(target, 5).any()
    finally:
        writer.close()
        await receiver.aclose()
        source.close()
        target.close()


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_pages_that_cannot_be_converted_are_refused_by_name(name: str, tmp_path: Path) -> None:
    mine, transport = pages_of("pairs-v1", 16), TRANSPORTS[name](tmp_path)
    source, target = open_pool(name, mine), open_pool(name, pages_of("fp32-v1", 16))
    receiver = await transport.receive(target, 2)
    try:
        with pytest.raises(TransferError, match="dtype: prefill has 'bf16', decode 'fp32'"):
            await transport.connect(receiver.handle(1), source, 1)
        if name != "memory":
            assert receiver.refused["shape"] >= 1
    finally:
        await receiver.aclose()


@pytest.mark.parametrize("name", ["cuda_ipc", "nccl"])
async def test_transports_between_gpus_refuse_to_convert_by_name(name: str, tmp_path: Path) -> None:
    communicators = FakeCommunicators()
    made: dict[str, Transport] = {
        "cuda_ipc": CudaIpc(RANDOM, folder=tmp_path),
        "nccl": NcclTransport(RANDOM, communicators=communicators),
    }
    mine, theirs = FORMS["16 > 32"]
    source, target = OpenPool(mine, 4), OpenPool(theirs, 4)
    receiver = await made[name].receive(target, 2)
    try:
        with pytest.raises(TransferError, match="moves pages only as they are"):
            await made[name].connect(receiver.handle(1), source, 1)
        assert receiver.refused["shape"] >= 1
    finally:
        await receiver.aclose()
        source.close()
        target.close()


def test_a_converted_span_has_the_checksum_of_its_place_in_the_receivers_page() -> None:
    mine, theirs = FORMS["16 > 32"]
    source, target, what = SharedPool(mine, 16), SharedPool(theirs, 16), text(TOKENS, "bf16")
    for place, page in enumerate(written(mine, what)):
        source.view(3 + place, 0, mine.layers)[:] = page.tobytes()
    reader, span = Converted(source, theirs), spans_of(mine, theirs, 1, 3)[1]
    data, checksum = reader.read(span)
    begin, length = theirs.place(1, 3)
    assert bytes(data) == converted(mine, theirs, written(mine, what), TOKENS)[1][begin : begin + length].tobytes()
    target.view(2, 1, 3)[:] = bytes(data)
    assert checksum == target.checksum(2, 1, 3)
    source.close()
    target.close()
