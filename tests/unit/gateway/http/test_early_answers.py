"""An answer that comes before the body of its request is complete reaches the client, however the connection ends; and
the times of a connection are those of its client, never those for which this process stands still."""

import asyncio
import socket
from typing import Any

import pytest

from gateway.http import part_timer
from gateway.http.ending import LINGER_SECONDS
from gateway.http.part_timer import AGAIN_SECONDS
from gateway.http.request_reader import RequestReader
from tests.harness.blocks import RECEIVE_SECONDS, status_of
from tests.sim.loop import VirtualLoop, run_virtual, virtual
from tests.unit.gateway.http.client_end import connected, turns

BODY_BYTES = 8 << 20  # more than the buffers of two sockets hold


def send_all_then_read(url: str, head: bytes) -> bytes:
    """A client that reads when it has sent everything; an error in sending ends it."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    received = bytearray()
    with socket.create_connection((host, int(port)), timeout=RECEIVE_SECONDS) as client:
        client.sendall(head + bytes(BODY_BYTES))
        while data := client.recv(65_536):
            received += data
    return bytes(received)


@pytest.mark.parametrize("kind", [b"1.1\r\nconnection: close", b"1.0"])
async def test_a_client_that_wants_the_connection_closed_reads_an_early_answer(url: str, kind: bytes) -> None:
    head = b"POST /nowhere HTTP/%b\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (kind, BODY_BYTES)
    answer = await asyncio.to_thread(send_all_then_read, url, head)
    assert status_of(answer) == 404 and b"connection: close" in answer


async def answer_at_once(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads no body."""
    await send({"type": "http.response.start", "status": 429, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def answer_later(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await answer_at_once(scope, receive, send)


def head(length: int, more: bytes = b"") -> bytes:
    return b"POST /x HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (more, length)


@virtual
async def test_the_answer_ends_and_what_the_client_still_sends_is_dropped_for_a_while() -> None:
    client, pipe = connected(answer_at_once)
    client.data_received(head(100, b"connection: close\r\n") + bytes(50))
    await turns()
    assert status_of(pipe.got) == 429 and b"connection: close" in pipe.got
    assert pipe.ended and not pipe.closed
    client.data_received(bytes(50) + head(0))
    await asyncio.sleep(LINGER_SECONDS - 0.1)
    assert not pipe.closed and pipe.got.count(b"HTTP/1.1") == 1
    await asyncio.sleep(0.2)
    assert pipe.closed


@virtual
async def test_a_request_that_came_whole_is_closed_at_once() -> None:
    """Negative control."""
    client, pipe = connected(answer_at_once)
    client.data_received(head(10, b"connection: close\r\n") + bytes(10))
    await turns()
    assert status_of(pipe.got) == 429 and pipe.closed and not pipe.ended


@virtual
async def test_the_next_request_does_not_inherit_the_time_of_the_one_before() -> None:
    client, pipe = connected(answer_at_once, body_seconds=30.0)
    client.data_received(head(100) + bytes(50))
    await turns()
    assert status_of(pipe.got) == 429
    client._app = answer_later
    client.data_received(bytes(50) + head(100) + bytes(50))  # the end of the one and the beginning of the next
    await asyncio.sleep(2 * LINGER_SECONDS)
    assert not pipe.closed
    client.data_received(bytes(50))
    await turns()
    assert pipe.got.count(b"HTTP/1.1 429") == 2
    client.data_received(head(100))
    await asyncio.sleep(31)
    assert b"HTTP/1.1 408" in pipe.got, "negative control"


@pytest.mark.parametrize("sends", [True, False])
@virtual
async def test_bytes_that_come_while_this_process_stands_still_are_read_before_the_client_is_judged(
    sends: bool,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    client, pipe = connected(answer_later, header_seconds=5.0)
    loop.stand_still(6.0)
    await turns()
    assert not pipe.closed
    if sends:
        client.data_received(head(0))
    await asyncio.sleep(AGAIN_SECONDS + 0.1)
    assert pipe.closed is not sends and (status_of(pipe.got) == 429) is sends


def test_headers_that_are_parsed_need_no_time_while_a_long_body_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes its turns, between which time passes."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        client, pipe = connected(answer_later, header_seconds=1.0, body_seconds=60.0)
        read = RequestReader.read

        def slow_read(self: RequestReader, piece: bytes) -> tuple[int, str] | None:
            loop.stand_still(0.05)
            return read(self, piece)

        monkeypatch.setattr(RequestReader, "read", slow_read)
        client.data_received(head(1_000_000) + bytes(1_000_000))
        await asyncio.sleep(10)
        assert status_of(pipe.got) == 429

    monkeypatch.setattr(part_timer, "STOOD_STILL_SECONDS", 1000.0)
    run_virtual(main())
