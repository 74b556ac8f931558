"""TCP's own promises: the sink, the length check, greetings, the throttle, TLS."""

import asyncio
import random
import ssl
import time

import pytest

from kvtransfer.frames import FRAME_BYTES, WELCOME_BYTES, Frame, Handle, Hello
from kvtransfer.tcp import Tcp, TcpOptions
from kvtransfer.tcp_link import advance
from kvtransfer.transfer import PageShape, Span, TransferError
from mesh.rules import Rules

TICKET = bytes(range(32))
FULL = b"\xab" * (6 * 4096)


def tcp(rules=None, **options):
    return Tcp(random.SystemRandom(), TcpOptions(**options), **({"rules": rules} if rules else {}))


async def greet(lane, writer=7):
    """A hand-driven writer: its raw stream, greeted."""
    handle = Handle.unpack(lane.receiver.handle(writer))
    host, port = handle.address.split(":")
    reader, stream = await asyncio.open_connection(host, int(port))
    stream.write(Hello(handle.token, writer, handle.receiver, lane.target.shape).pack())
    await reader.readexactly(WELCOME_BYTES)
    return reader, stream


def frame(index=0, ticket=TICKET, length=6 * 4096, first_layer=0, layers=6):
    return Frame(ticket, index, first_layer, layers, 0, 0, length).pack()


async def half_a_frame(lane, end):
    """Half a frame lands, `end` ends the landing, the other half comes; returns the page."""
    lane.receiver.open(TICKET, {0: 5}, lane.arrived.append)
    _, stream = await greet(lane)
    stream.write(frame() + FULL[:10_000])
    await lane.until(lambda: lane.target.view(5, 0, 6)[9_999] == 0xAB)
    end(lane)
    stream.write(FULL[10_000:] + frame(ticket=b"n" * 32) + FULL)
    done = len(lane.arrived)
    lane.receiver.open(b"e" * 32, {9: 9}, lane.arrived.append)
    stream.write(frame(index=9, ticket=b"e" * 32) + FULL)
    await lane.until(lambda: len(lane.arrived) > done and lane.arrived[-1].ticket == b"e" * 32)
    stream.close()
    await stream.wait_closed()
    return bytes(lane.target.view(5, 0, 6))


ENDS = {
    "closed": lambda lane: lane.receiver.close(TICKET),
    "opened again with another page": lambda lane: lane.receiver.open(TICKET, {0: 6}, lane.arrived.append),
}


@pytest.mark.parametrize("end", ENDS)
async def test_not_one_byte_lands_after_the_landing_ended_in_mid_frame(new_lane, end):
    async with new_lane(tcp()) as lane:
        page = await half_a_frame(lane, ENDS[end])
        assert page == FULL[:10_000] + bytes(len(FULL) - 10_000)
        assert [told.ticket for told in lane.arrived] == [b"e" * 32], "a frame without its landing was reported"
        assert not any(lane.target.view(6, 0, 6))


async def test_without_the_sink_the_second_half_of_a_frame_lands(new_lane):
    async with new_lane(tcp(Rules(sink=False))) as lane:
        assert await half_a_frame(lane, ENDS["closed"]) == FULL


async def test_a_second_copy_half_received_when_the_first_completes_the_page_goes_into_the_sink(new_lane):
    async with new_lane(tcp()) as lane:

        def admit(arrived):
            lane.receiver.close(arrived.ticket)
            lane.target.view(5, 0, 6)[:] = b"\x01" * len(FULL)  # the page belongs to a running request now
            lane.arrived.append(arrived)

        lane.receiver.open(TICKET, {0: 5}, admit)
        _, slow = await greet(lane)
        slow.write(frame() + FULL[:100])
        await lane.until(lambda: lane.target.view(5, 0, 6)[99] == 0xAB)
        await lane.writer.write(TICKET, [Span(0, 3, 5, 0, 6)], 0)
        await lane.landed(1)
        slow.write(FULL[100:])
        await lane.until(lambda: lane.receiver.landings.discarded_bytes == len(FULL))
        assert set(lane.target.view(5, 0, 6)) == {1}
        slow.close()
        await slow.wait_closed()


@pytest.mark.parametrize(
    "header",
    [
        frame(length=len(FULL) - 1),
        frame(length=2**40),
        frame(length=4096 * 3, layers=3, first_layer=4),
        frame(length=0, layers=0),
        b"XPAG" + frame()[4:],
        b"BPAG\x03\x00" + frame()[6:],
    ],
    ids=["short", "endless", "beyond the last layer", "empty", "another magic", "another version"],
)
async def test_a_frame_that_cannot_be_right_closes_its_connection(new_lane, header):
    async with new_lane(tcp()) as lane:
        lane.receiver.open(TICKET, {0: 5}, lane.arrived.append)
        reader, stream = await greet(lane)
        stream.write(header + FULL)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert lane.receiver.refused["frame"] == 1
        assert not any(lane.target.view(5, 0, 6))
        stream.close()
        await lane.writer.write(TICKET, [Span(0, 1, 5, 0, 6)], 0)  # other writers are not harmed
        await lane.landed(1)


async def test_a_stranger_is_cut_off_after_one_greetings_bytes_and_counted(new_lane):
    async with new_lane(tcp()) as lane:
        host, port = Handle.unpack(lane.receiver.handle(7)).address.split(":")
        reader, stream = await asyncio.open_connection(host, int(port))
        stream.write(b"GET / HTTP/1.1\r\n" + b"x" * 4096)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert lane.receiver.refused == {"malformed": 1}
        stream.close()


async def test_whoever_does_not_greet_in_time_is_cut_off(new_lane):
    async with new_lane(tcp(handshake_seconds=1.0)) as lane:
        host, port = Handle.unpack(lane.receiver.handle(7)).address.split(":")
        reader, stream = await asyncio.open_connection(host, int(port))
        stream.write(b"BHEL")
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 30)
        assert lane.receiver.refused == {"late": 1}
        stream.close()
        await asyncio.sleep(1.1)
        lane.receiver.open(TICKET, {0: 5}, lane.arrived.append)
        await lane.writer.write(TICKET, [Span(0, 1, 5, 0, 6)], 0)  # the greeted ones stay
        await lane.landed(1)


async def test_strangers_that_say_nothing_cannot_crowd_out_writers_for_longer_than_a_handshake(new_lane):
    async with new_lane(tcp(handshake_seconds=1.5)) as lane:
        host, port = Handle.unpack(lane.receiver.handle(7)).address.split(":")
        streams = [await asyncio.open_connection(host, int(port)) for _ in range(80)]
        await lane.until(lambda: lane.receiver.refused["crowd"] == 16)
        await lane.until(lambda: lane.receiver.refused["late"] == 64)
        _, stream = await greet(lane)
        for other in [stream, *(stream for _, stream in streams)]:
            other.close()


async def test_frames_of_a_stopped_reader_wait_without_spinning_and_go_on(new_lane):
    """Back-pressure: more than the socket's buffers hold, and nobody reads for a while."""
    shape = PageShape(((4, 262_144),), "fp32-64-128-v1")
    async with new_lane(tcp(), shape=shape, pages=32) as lane:
        spans = [Span(index, index, index, 0, 4) for index in range(32)]
        lane.open(TICKET, spans)
        for connection in lane.receiver._connections:
            connection._transport.pause_reading()
        task = asyncio.ensure_future(lane.writer.write(TICKET, spans, 0))
        await asyncio.sleep(0.1)
        assert not task.done()
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.05
        for connection in lane.receiver._connections:
            connection._transport.resume_reading()
        await task
        await lane.landed(32)
        assert lane.target.buffer == lane.source.buffer


async def test_closing_the_writer_frees_a_write_that_waits_for_a_stopped_reader(new_lane):
    shape = PageShape(((4, 262_144),), "fp32-64-128-v1")
    async with new_lane(tcp(), shape=shape, pages=32) as lane:
        for connection in lane.receiver._connections:
            connection._transport.pause_reading()
        spans = [Span(index, index, index, 0, 4) for index in range(32)]
        task = asyncio.ensure_future(lane.writer.write(TICKET, spans, 0))
        await asyncio.sleep(0.05)
        lane.writer.close()
        with pytest.raises(TransferError, match="closed"):
            await asyncio.wait_for(task, 30)


async def test_a_cancelled_write_leaves_whole_frames_behind(new_lane):
    async with new_lane(tcp(connections=1)) as lane:
        spans = [Span(index, index, index, 0, 6) for index in range(64)]
        lane.open(TICKET, spans)
        for _ in range(10):
            task = asyncio.ensure_future(lane.writer.write(TICKET, spans, 0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        written = lane.writer.bytes_written
        assert 0 < written < 10 * 64 * len(FULL)
        await lane.landed(written // len(FULL))
        assert lane.receiver.refused.total() == 0 and all(lane.same(spans[told.index]) for told in lane.arrived)


async def test_the_throttle_keeps_its_rate(new_lane):
    async with new_lane(tcp(bytes_per_second=10e6)) as lane:
        spans = [Span(index, index, index, 0, 6) for index in range(64)]
        lane.open(TICKET, spans)
        begun = time.monotonic()
        for _ in range(4):  # 6.3 MB
            await lane.writer.write(TICKET, spans, 0)
        assert time.monotonic() - begun > 0.55


async def test_a_two_sided_writer_needs_no_proof_and_cannot_be_killed(new_lane):
    async with new_lane(tcp()) as lane:
        assert await lane.receiver.silent(7, 0) and not lane.receiver.kill(7)


async def test_a_writer_without_certificates_is_told_so(new_lane, certificates):
    async with new_lane(Tcp(random.SystemRandom(), listen_tls=certificates[0], dial_tls=certificates[1])) as lane:
        with pytest.raises(TransferError, match="TLS"):
            await tcp().connect(lane.receiver.handle(1), lane.source, 1)


async def test_a_writer_that_does_not_trust_the_certificate_sends_nothing(new_lane, certificates):
    async with new_lane(Tcp(random.SystemRandom(), listen_tls=certificates[0], dial_tls=certificates[1])) as lane:
        stranger = Tcp(random.SystemRandom(), dial_tls=ssl.create_default_context())
        with pytest.raises(TransferError, match="certificate"):
            await stranger.connect(lane.receiver.handle(1), lane.source, 1)


async def test_a_port_in_use_is_an_error_that_names_it(new_lane):
    async with new_lane(tcp()) as lane:
        port = int(Handle.unpack(lane.receiver.handle(7)).address.split(":")[1])
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"):
            await tcp(port=port).receive(lane.target, 1)


def test_a_wildcard_without_an_address_to_dial_is_refused():
    assert "advertise" in tcp(host="0.0.0.0").available()
    assert tcp(host="0.0.0.0", advertise="10.0.0.7").available() == ""
    assert tcp(host="localhost").available() == ""


def test_advance_takes_bytes_off_the_front():
    parts = [b"abc", b"defg", b"h"]
    for count in range(9):
        buffers = [memoryview(part) for part in parts]
        advance(buffers, count)
        assert b"".join(buffers) == b"abcdefgh"[count:]


def test_frame_headers_are_small():
    assert FRAME_BYTES <= 96
