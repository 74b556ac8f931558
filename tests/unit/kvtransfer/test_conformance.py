"""What every transport promises, whatever it is made of."""

import asyncio
import gc
import os
import random
import resource
from pathlib import Path

import numpy as np
import pytest

from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_shape import opaque_pages

TICKET = bytes(range(32))


def whole(index, source, target, layers=6):
    return Span(index, source, target, 0, layers)


async def test_bytes_of_whole_pages_arrive_unchanged(pair):
    spans = [whole(index, index, 63 - index) for index in range(16)]
    pair.open(TICKET, spans)
    await pair.writer.write(TICKET, spans, 0)
    await pair.landed(len(spans))
    assert all(pair.same(span) for span in spans)


async def test_nothing_outside_the_named_spans_is_touched(pair):
    spans = [Span(0, 3, 7, 2, 3)]
    pair.open(TICKET, spans)
    await pair.writer.write(TICKET, spans, 0)
    await pair.landed(1)
    assert pair.same(spans[0])
    pair.target.view(7, 2, 3)[:] = bytes(3 * 4096)
    assert not any(pair.target.buffer), "bytes landed outside the span"


async def test_checksums_are_those_of_the_bytes_on_both_sides(pair, checksum):
    spans = [Span(0, 1, 2, 0, 2), Span(1, 4, 9, 2, 3), Span(2, 5, 5, 5, 1), whole(3, 8, 1)]
    pair.open(TICKET, spans)
    sums = await pair.writer.write(TICKET, spans, 0)
    await pair.landed(len(spans))
    assert sums == tuple(pair.source.checksum(span.source, span.first_layer, span.layers) for span in spans)
    assert sums == tuple(pair.target.checksum(span.target, span.first_layer, span.layers) for span in spans)
    views = [pair.target.view(span.target, span.first_layer, span.layers) for span in spans]
    assert sums == tuple(checksum(view, span.first_layer * 4096) for view, span in zip(views, spans, strict=True))
    assert len(set(sums)) == len(sums)


async def test_layer_groups_written_one_by_one_make_the_page_and_its_checksum(pair):
    spans = [Span(0, 5, 6, first, 2) for first in (4, 0, 2)]
    pair.open(TICKET, spans)
    sums = [(await pair.writer.write(TICKET, [span], 0))[0] for span in spans]
    await pair.landed(3)
    assert pair.same(whole(0, 5, 6))
    assert sum(sums) % 2**64 == pair.target.checksum(6, 0, 6)


async def test_many_concurrent_tickets_land_each_in_their_own_pages(pair):
    order = random.Random(3).sample(range(64), 64)
    jobs = {}
    for number in range(16):
        ticket = bytes([number]) * 32
        pages = order[number * 4 : number * 4 + 4]
        jobs[ticket] = [
            Span(index, (page + 1) % 64, page, first, 2) for first in (0, 2, 4) for index, page in enumerate(pages)
        ]
        pair.open(ticket, jobs[ticket])
    await asyncio.gather(*(pair.writer.write(ticket, spans, 0) for ticket, spans in jobs.items()))
    await pair.landed(16 * 12)
    assert all(pair.same(span) for spans in jobs.values() for span in spans)
    assert pair.target.buffer[:4096] == pair.source.buffer[6 * 4096 : 7 * 4096]


async def test_bytes_written_counts_the_bytes_of_pages(pair):
    spans = [Span(0, 1, 2, 0, 2), Span(1, 4, 9, 2, 3)]
    pair.open(TICKET, spans)
    await pair.writer.write(TICKET, spans, 0)
    await pair.writer.write(TICKET, spans[:1], 1)
    assert pair.writer.bytes_written == 7 * 4096


async def test_the_source_may_change_as_soon_as_a_write_returned(pair):
    spans = [whole(index, index, index) for index in range(64)]
    before = bytes(pair.source.buffer)
    pair.open(TICKET, spans)
    await pair.writer.write(TICKET, spans, 0)
    pair.source.buffer[:] = bytes(len(pair.source.buffer))
    await pair.landed(64)
    assert pair.target.buffer == before


async def test_a_later_write_of_a_ticket_wins(pair):
    for value in (1, 2, 3):
        pair.source.view(value, 0, 6)[:] = bytes([value]) * pair.source.shape.page_bytes
    pair.open(TICKET, [whole(0, 1, 9)])
    for value in (1, 2, 3):
        await pair.writer.write(TICKET, [whole(0, value, 9)], 0)
        await pair.landed(value)
    assert set(pair.target.view(9, 0, 6)) == {3}


async def test_an_empty_write_is_nothing(pair):
    assert await pair.writer.write(TICKET, [], 0) == ()


OUTSIDE = [Span(0, 64, 0, 0, 1), Span(0, -1, 0, 0, 1), Span(0, 0, 64, 0, 1), Span(0, 0, 0, 5, 2), Span(0, 0, 0, 0, 0)]


async def test_a_span_outside_the_pools_is_refused_and_harms_nothing(real_pair):
    for span in OUTSIDE:
        with pytest.raises(IndexError):
            await real_pair.writer.write(TICKET, [span], 0)
            raise AssertionError(span)
    real_pair.open(TICKET, [whole(0, 1, 2)])
    await real_pair.writer.write(TICKET, [whole(0, 1, 2)], 0)
    await real_pair.landed(1)
    assert real_pair.same(whole(0, 1, 2))


async def test_big_pages_arrive_unchanged(transport, new_pair):
    shape = opaque_pages((25, 16384), content="pairs-32-64-v1")  # 400 KiB
    async with new_pair(transport, shape=shape, pages=12) as pair:
        spans = [whole(index, index, 11 - index, 25) for index in range(12)]
        pair.open(TICKET, spans)
        sums = await pair.writer.write(TICKET, spans, 0)
        await pair.landed(12)
        assert all(pair.same(span) for span in spans)
        assert sums == tuple(pair.target.checksum(span.target, 0, 25) for span in spans)


async def test_layers_of_model_and_draft_land_where_they_belong(transport, new_pair):
    shape = opaque_pages((6, 4096), (2, 1024), content="fp32-16-16-v1+fp32-16-16-v1-d4af7")
    async with new_pair(transport, shape=shape) as pair:
        spans = [
            Span(0, 3, 5, 0, 5),
            Span(0, 3, 5, 5, 2),
            Span(0, 3, 5, 7, 1),
            Span(1, 4, 6, 6, 2),
            Span(1, 4, 6, 0, 6),
        ]
        pair.open(TICKET, spans)
        sums = await pair.writer.write(TICKET, spans, 0)
        await pair.landed(5)
        assert pair.same(Span(0, 3, 5, 0, 8)) and pair.same(Span(1, 4, 6, 0, 8))
        assert sums == tuple(pair.target.checksum(span.target, span.first_layer, span.layers) for span in spans)
        assert sum(sums[:3]) % 2**64 == pair.target.checksum(5, 0, 8)
        assert pair.writer.bytes_written == 2 * shape.page_bytes


async def test_pages_of_another_shape_are_refused_by_name(real_pair, transport, new_pair):
    other = opaque_pages((6, 4096), content="another model")
    async with new_pair(transport, shape=other) as strange:
        handle = real_pair.receiver.handle(1)
        with pytest.raises(TransferError, match="another model"):
            await transport.connect(handle, strange.source, 1)


async def test_a_handle_with_another_token_is_refused(real_pair, transport):
    handle = bytearray(real_pair.receiver.handle(1))
    handle[8] ^= 1
    with pytest.raises(TransferError):
        await transport.connect(bytes(handle), real_pair.source, 1)
    assert real_pair.receiver.refused["token"] >= 1


async def test_a_handle_is_no_good_for_another_writer(real_pair, transport):
    with pytest.raises(TransferError):
        await transport.connect(real_pair.receiver.handle(1), real_pair.source, 2)


async def test_a_damaged_handle_is_refused(real_pair, transport):
    for handle in (b"", b"x" * 31, b"\0" * 64, b"SHM1" + b"\xff" * 60):
        with pytest.raises(TransferError):
            await transport.connect(handle, real_pair.source, 1)
            raise AssertionError(handle)


async def test_writes_fail_once_the_receiver_is_gone(real_pair):
    await real_pair.receiver.aclose()
    with pytest.raises(TransferError):
        for _ in range(200):
            await real_pair.writer.write(TICKET, [whole(0, 0, 0)], 0)
            await asyncio.sleep(0.005)


async def test_writes_fail_after_the_writer_was_closed(pair):
    pair.writer.close()
    pair.writer.close()
    with pytest.raises(TransferError):
        await pair.writer.write(TICKET, [whole(0, 0, 0)], 0)


async def test_nothing_is_left_open_after_closing(transport, new_pair):
    async def session():
        async with new_pair(transport) as pair:
            pair.open(TICKET, [whole(0, 0, 0)])
            await pair.writer.write(TICKET, [whole(0, 0, 0)], 0)
            await pair.landed(1)

    gc.freeze()  # what earlier tests have left is none of its business, and takes long to look through
    try:
        await session()
        await asyncio.sleep(0.05)
        gc.collect()
        descriptors, mappings = len(os.listdir("/proc/self/fd")), _mappings()
        for _ in range(5):
            await session()
        await asyncio.sleep(0.05)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= descriptors and _mappings() <= mappings  # others' may go meanwhile
    finally:
        gc.unfreeze()


async def test_an_idle_pair_uses_no_processor_time(real_pair):
    await real_pair.writer.write(TICKET, [whole(0, 0, 0)], 0)
    await asyncio.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    await asyncio.sleep(0.4)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (
        after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.2
    )  # one that spins takes twice as much


async def test_a_cancelled_write_is_over_when_its_task_is(real_pair):
    """After it, the source pages may belong to another request."""
    spans = [whole(index, index, index) for index in range(64)]
    real_pair.open(TICKET, spans)
    before = bytes(real_pair.source.buffer)
    for _ in range(20):
        task = asyncio.ensure_future(real_pair.writer.write(TICKET, spans, 0))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        real_pair.source.buffer[:] = b"\xee" * len(before)
        await asyncio.sleep(0.002)
        landed = np.frombuffer(bytes(real_pair.target.buffer), np.uint64)
        assert not (landed == 0xEEEEEEEEEEEEEEEE).any()
        del landed
        real_pair.source.buffer[:] = before
    await real_pair.writer.write(TICKET, spans, 0)
    async with asyncio.timeout(30):  # frames of the cancelled writes may still arrive before its own
        while real_pair.target.buffer != before:
            await asyncio.sleep(0.005)


def _mappings():
    return Path("/proc/self/maps").read_text().count("baton-pages")
