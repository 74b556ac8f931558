"""A plain connection of TCP is woken for many bytes, and never waits for more than will come."""

import asyncio

import pytest

from kvtransfer import tcp_wires
from kvtransfer.portion_reader import MOST_TCP_FRAMES
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, pack_portion
from kvtransfer.transfer import Span
from mesh.messages.page_shape import opaque_pages
from tests.unit.kvtransfer.tcp_transport import TICKET, tcp
from tests.unit.kvtransfer.test_tcp import greet

SHAPE = opaque_pages((4, 4096), content="fp32-16-16-v1")
PAGE = 4 * 4096


def portion(pages):
    spans = [Span(index, 0, 0, 0, 4) for index in pages]
    return pack_portion(TICKET, spans, 0, [0] * len(spans), SHAPE) + b"\xab" * (PAGE * len(spans))


async def arriving(new_pair, pieces, *, pages):
    """Send these pieces one by one over one connection; returns how often it was woken until all pages had come."""
    async with new_pair(tcp(), shape=SHAPE, pages=pages) as pair:
        pair.receiver.open(TICKET, {index: index for index in range(pages)}, pair.arrived.append)
        _, stream = await greet(pair)
        stream.transport.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY: each piece travels alone
        woken = 0
        before = tcp_wires.PlainWire._wait_for

        def count(wire, wanted):
            nonlocal woken
            woken += 1
            before(wire, wanted)

        tcp_wires.PlainWire._wait_for = count
        try:
            for piece in pieces:
                stream.write(piece)
                await asyncio.sleep(0.001)
            await pair.until(lambda: len(pair.arrived) == pages)
        finally:
            tcp_wires.PlainWire._wait_for = before
        assert pair.target.buffer == b"\xab" * (PAGE * pages)
        stream.close()
        await stream.wait_closed()
        return woken


def cut(data, size):
    return [data[at : at + size] for at in range(0, len(data), size)]


async def test_pages_that_come_in_small_pieces_wake_the_reader_seldom(new_pair, monkeypatch):
    pieces = cut(portion(range(MOST_TCP_FRAMES)), 8192)
    assert await arriving(new_pair, pieces, pages=MOST_TCP_FRAMES) < len(pieces) / 4
    monkeypatch.setattr(tcp_wires, "_AT_ONCE_BYTES", 1)
    assert await arriving(new_pair, pieces, pages=MOST_TCP_FRAMES) > len(pieces) / 2, "negative control"


HEAD = COUNT_BYTES + FRAME_BYTES


@pytest.mark.parametrize("behind", [COUNT_BYTES, HEAD, HEAD + 100, HEAD + PAGE])
async def test_a_small_portion_behind_large_ones_does_not_wait_for_more(new_pair, behind):
    """Where the last portion is cut at each of its borders, its rest comes alone, and nothing follows."""
    large, small = portion(range(20)) + portion(range(20, 40)), portion([40])
    assert await arriving(new_pair, [large + small[:behind], small[behind:]], pages=41) > 0


async def test_full_reads_do_not_leave_the_reader_waiting_for_many_bytes(new_pair):
    """A reader stops after a few reads that were full: what it waits for then is the next portion's first bytes."""
    pieces = [portion([index]) for index in range(40)]
    assert await arriving(new_pair, [b"".join(pieces[:39]), *cut(pieces[39], 50)], pages=40) > 0
