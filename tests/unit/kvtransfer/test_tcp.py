"""TCP's own promises: the sink, the length check, greetings, the throttle. TLS is in test_tcp_tls.py."""

import asyncio
import time

import pytest

from kvtransfer.frames import GREETING_BYTES, WELCOME_BYTES, Greeting, PoolHandle
from kvtransfer.portion_reader import MOST_TCP_FRAMES
from kvtransfer.portions import COUNT_BYTES, FRAME_BYTES, pack_portion
from kvtransfer.tcp import TcpReceiver
from kvtransfer.tcp_socket import advance
from kvtransfer.transfer import Span, TransferError
from mesh.messages.page_shape import opaque_pages
from tests.mutants.kvtransfer import MUTANTS
from tests.unit.kvtransfer.tcp_transport import TICKET, tcp

FULL = b"\xab" * (6 * 4096)


async def greet(pair, writer=7):
    """A hand-driven writer: its raw stream, greeted."""
    handle = PoolHandle.unpack(pair.receiver.handle(writer))
    reader, stream = await pair.dial()
    stream.write(Greeting(handle.token, writer, handle.receiver, pair.target.shape).pack())
    await reader.readexactly(WELCOME_BYTES)
    return reader, stream


def frame(index=0, ticket=TICKET, length=6 * 4096, first_layer=0, layers=6, count=1):
    """A portion of frames that are equal."""
    spans = [Span(index, 0, 0, first_layer, layers)] * count
    raw = pack_portion(ticket, spans, 0, [0] * count, opaque_pages((6, 4096), content="any"))
    return raw[:-8] + length.to_bytes(8, "little")


async def half_a_frame(pair, end):
    """Half a frame lands, `end` ends the landing, the other half comes; returns the page."""
    pair.receiver.open(TICKET, {0: 5}, pair.arrived.append)
    _, stream = await greet(pair)
    stream.write(frame() + FULL[:10_000])
    await pair.until(lambda: pair.target.view(5, 0, 6)[9_999] == 0xAB)
    end(pair)
    stream.write(FULL[10_000:] + frame(ticket=b"n" * 32) + FULL)
    done = len(pair.arrived)
    pair.receiver.open(b"e" * 32, {9: 9}, pair.arrived.append)
    stream.write(frame(index=9, ticket=b"e" * 32) + FULL)
    await pair.until(lambda: len(pair.arrived) > done and pair.arrived[-1].ticket == b"e" * 32)
    stream.close()
    await stream.wait_closed()
    return bytes(pair.target.view(5, 0, 6))


ENDS = {
    "closed": lambda pair: pair.receiver.close(TICKET),
    "opened again with another page": lambda pair: pair.receiver.open(TICKET, {0: 6}, pair.arrived.append),
}


@pytest.mark.parametrize("end", ENDS)
async def test_not_one_byte_lands_after_the_landing_ended_in_mid_frame(new_pair, end):
    async with new_pair(tcp()) as pair:
        page = await half_a_frame(pair, ENDS[end])
        assert page == FULL[:10_000] + bytes(len(FULL) - 10_000)
        assert [told.ticket for told in pair.arrived] == [b"e" * 32], "a frame without its landing was reported"
        assert not any(pair.target.view(6, 0, 6))


async def test_negative_control_without_the_sink_the_second_half_of_a_frame_lands(new_pair, monkeypatch):
    MUTANTS["sink"](monkeypatch.setattr)
    async with new_pair(tcp()) as pair:
        assert await half_a_frame(pair, ENDS["closed"]) == FULL


async def test_a_second_copy_half_received_when_the_first_completes_the_page_goes_into_the_sink(new_pair):
    async with new_pair(tcp()) as pair:

        def admit(arrived):
            pair.receiver.close(arrived.ticket)
            pair.target.view(5, 0, 6)[:] = b"\x01" * len(FULL)  # the page belongs to a running request now
            pair.arrived.append(arrived)

        pair.receiver.open(TICKET, {0: 5}, admit)
        _, slow = await greet(pair)
        slow.write(frame() + FULL[:100])
        await pair.until(lambda: pair.target.view(5, 0, 6)[99] == 0xAB)
        await pair.writer.write(TICKET, [Span(0, 3, 5, 0, 6)], 0)
        await pair.landed(1)
        slow.write(FULL[100:])
        await pair.until(lambda: pair.receiver.landings.discarded_bytes == len(FULL))
        assert set(pair.target.view(5, 0, 6)) == {1}
        slow.close()
        await slow.wait_closed()


async def test_a_frame_whose_landing_takes_no_more_of_its_page_goes_into_the_sink(new_pair):
    async with new_pair(tcp()) as pair:
        begun = list[tuple[int, int, int]]()

        def begins(*frame):
            begun.append(frame)
            return len(begun) == 1

        pair.receiver.open(TICKET, {0: 5}, pair.arrived.append, begins)
        await pair.writer.write(TICKET, [Span(0, 3, 5, 0, 6)], 0)
        await pair.landed(1)
        pair.target.view(5, 0, 6)[:] = b"\x01" * len(FULL)
        await pair.writer.write(TICKET, [Span(0, 3, 5, 0, 6)], 1)
        await pair.until(lambda: pair.receiver.landings.discarded_bytes == len(FULL))
        assert begun == [(0, 0, 6)] * 2 and len(pair.arrived) == 1 and set(pair.target.view(5, 0, 6)) == {1}


@pytest.mark.parametrize(
    "header",
    [
        frame(length=len(FULL) - 1),
        frame(length=2**40),
        frame(length=4096 * 3, layers=3, first_layer=4),
        frame(length=0, layers=0),
        b"XPOR" + frame()[4:],
        frame()[:COUNT_BYTES] + b"XPAG" + frame()[COUNT_BYTES + 4 :],
        frame()[:COUNT_BYTES] + b"BPAG\x02\x00" + frame()[COUNT_BYTES + 6 :],
        b"BPOR" + bytes(4) + frame()[COUNT_BYTES:],
        frame(count=MOST_TCP_FRAMES + 1),
        frame(count=2, length=5 * 4096),
    ],
    ids=[
        "short",
        "endless",
        "beyond the last layer",
        "empty",
        "another magic",
        "another magic of a frame",
        "another version",
        "no frames",
        "too many frames",
        "the last frame short",
    ],
)
async def test_a_frame_that_cannot_be_right_closes_its_connection(new_pair, header):
    async with new_pair(tcp()) as pair:
        pair.receiver.open(TICKET, {0: 5}, pair.arrived.append)
        reader, stream = await greet(pair)
        stream.write(header + FULL)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert pair.receiver.refused["frame"] == 1
        assert not any(pair.target.view(5, 0, 6))
        stream.close()
        await pair.writer.write(TICKET, [Span(0, 1, 5, 0, 6)], 0)  # other writers are not harmed
        await pair.landed(1)


async def test_a_stranger_is_cut_off_after_one_greetings_bytes_and_counted(new_pair):
    async with new_pair(tcp()) as pair:
        reader, stream = await pair.dial()
        stream.write(b"GET / HTTP/1.1\r\n" + b"x" * 4096)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert pair.receiver.refused == {"malformed": 1}
        stream.close()


async def test_a_connection_that_does_not_greet_in_time_is_cut_off(new_pair):
    async with new_pair(tcp(handshake_seconds=1.0)) as pair:
        reader, stream = await pair.dial()
        stream.write(b"BHEL")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert pair.receiver.refused == {"late": 1}
        stream.close()
        await asyncio.sleep(1.1)
        pair.receiver.open(TICKET, {0: 5}, pair.arrived.append)
        await pair.writer.write(TICKET, [Span(0, 1, 5, 0, 6)], 0)  # the greeted ones stay
        await pair.landed(1)


async def silent_strangers(pair, count):
    streams = [(await pair.dial())[1] for _ in range(count)]
    await pair.until(lambda: len(pair.receiver._connections) + pair.receiver.refused["crowd"] >= count)
    return streams


@pytest.mark.parametrize("count", [64, 300])
async def test_strangers_that_say_nothing_delay_no_writer(new_pair, count):
    async with new_pair(tcp(handshake_seconds=600.0)) as pair:  # a writer that waits for their end never gets in
        streams = await silent_strangers(pair, count)
        async with asyncio.timeout(60):
            _, stream = await greet(pair)
        assert pair.receiver.refused["crowd"] == max(0, count + 1 - 256) and pair.receiver.refused["late"] == 0
        for other in [stream, *streams]:
            other.close()


async def test_negative_control_a_crowd_that_does_not_give_way_keeps_writers_out(new_pair, monkeypatch):
    def stay(receiver, connection):
        receiver._connections.add(connection)
        if sum(not other.greeted for other in receiver._connections) > 64:
            connection.refuse("crowd")

    monkeypatch.setattr(TcpReceiver, "joined", stay)
    async with new_pair(tcp(handshake_seconds=600.0)) as pair:
        streams, handle = await silent_strangers(pair, 80), PoolHandle.unpack(pair.receiver.handle(7))
        reader, stream = await pair.dial()
        stream.write(Greeting(handle.token, 7, handle.receiver, pair.target.shape).pack())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(WELCOME_BYTES)
        for other in [stream, *streams]:
            other.close()


async def test_a_silent_connection_takes_little_memory(new_pair):
    async with new_pair(tcp()) as pair:
        (stream,) = await silent_strangers(pair, 1)
        (silent,) = [each for each in pair.receiver._connections if not each.greeted]
        assert len(silent._greeting) == GREETING_BYTES and silent._reader is None
        stream.close()


async def test_frames_of_a_stopped_reader_wait_without_spinning_and_go_on(new_pair):
    """Back-pressure: more than the socket's buffers hold, and nobody reads for a while."""
    shape = opaque_pages((4, 262_144), content="fp32-64-128-v1")
    async with new_pair(tcp(), shape=shape, pages=32) as pair:
        spans = [Span(index, index, index, 0, 4) for index in range(32)]
        pair.open(TICKET, spans)
        for connection in pair.receiver._connections:
            connection.wire.pause_reading()
        task = asyncio.ensure_future(pair.writer.write(TICKET, spans, 0))
        await asyncio.sleep(0.1)
        assert not task.done()
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.2  # a writer that spins takes the whole half second
        for connection in pair.receiver._connections:
            connection.wire.resume_reading()
        await task
        await pair.landed(32)
        assert pair.target.buffer == pair.source.buffer


async def test_closing_the_writer_frees_a_write_that_waits_for_a_stopped_reader(new_pair):
    shape = opaque_pages((4, 262_144), content="fp32-64-128-v1")
    async with new_pair(tcp(), shape=shape, pages=32) as pair:
        for connection in pair.receiver._connections:
            connection.wire.pause_reading()
        spans = [Span(index, index, index, 0, 4) for index in range(32)]
        task = asyncio.ensure_future(pair.writer.write(TICKET, spans, 0))
        await asyncio.sleep(0.05)
        pair.writer.close()
        with pytest.raises(TransferError, match="closed"):
            await asyncio.wait_for(task, 30)


async def test_a_cancelled_write_leaves_whole_frames_behind(new_pair):
    async with new_pair(tcp(connections=1)) as pair:
        spans = [Span(index, index, index, 0, 6) for index in range(64)] * 4  # more than the socket's buffer takes
        pair.open(TICKET, spans)
        for _ in range(10):
            task = asyncio.ensure_future(pair.writer.write(TICKET, spans, 0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        written = pair.writer.bytes_written
        assert 0 < written < 10 * len(spans) * len(FULL)
        await pair.landed(written // len(FULL))
        assert pair.receiver.refused.total() == 0 and all(pair.same(spans[told.page]) for told in pair.arrived)


async def test_a_throttled_writer_is_never_faster_than_its_rate(new_pair):
    async with new_pair(tcp(bytes_per_second=10e6)) as pair:
        spans = [Span(index, index, index, 0, 6) for index in range(64)]
        pair.open(TICKET, spans)
        begun = time.monotonic()
        for _ in range(4):  # 6.3 MB
            await pair.writer.write(TICKET, spans, 0)
        assert time.monotonic() - begun > 0.55


async def test_a_two_sided_writer_needs_no_proof_and_cannot_be_killed(new_pair):
    async with new_pair(tcp()) as pair:
        assert await pair.receiver.silent(7, 0) and not pair.receiver.kill(7)


def test_advance_takes_bytes_off_the_front():
    parts = [b"abc", b"defg", b"h"]
    for count in range(9):
        buffers = [memoryview(part) for part in parts]
        advance(buffers, count)
        assert b"".join(buffers) == b"abcdefgh"[count:]


def test_frame_headers_are_small():
    assert FRAME_BYTES <= 96
