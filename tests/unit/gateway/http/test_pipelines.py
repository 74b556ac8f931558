"""Requests that follow each other on one connection: each gets an answer of its own kind, whatever comes behind it."""

import asyncio
import re
from typing import Any

import pytest

from gateway.http.ending import LINGER_SECONDS
from gateway.http.in_process_call import answer_of
from tests.sim.loop import run_virtual, virtual
from tests.unit.gateway.http.client_end import ClientEnd, connected, turns

GET, OLD = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /b HTTP/1.0\r\n\r\n"
STREAM, CLOSING = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 \d{3} ")
PARTS, WHOLE = 10, b"data: more\n\n" * 10


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    """/a is a stream of two seconds, anything else an empty answer of status 204."""
    if scope["path"] != "/a":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(PARTS):
        await asyncio.sleep(0.2)
        await send({"type": "http.response.body", "body": b"data: more\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """The answer comes when the body is whole."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def after(first: bytes, second: bytes, pause: float, seconds: float = 30.0) -> ClientEnd:
    """The client's end of a connection on which these were sent, some seconds later."""

    async def main() -> ClientEnd:
        client, pipe = connected(streaming, header_seconds=1.0)
        client.data_received(first + second if not pause else first)
        await asyncio.sleep(pause)
        if pause:
            client.data_received(second)
        await asyncio.sleep(seconds)
        return pipe

    return run_virtual(main())


def split(raw: bytes) -> tuple[bytes, bytes]:
    """The first answer, which is a stream in chunks, and what is behind it."""
    end = raw.index(b"\r\n0\r\n\r\n") + 7
    return raw[:end], raw[end:]


@pytest.mark.parametrize("pause", [0.0, 0.5])
@pytest.mark.parametrize(
    ("behind", "status"),
    [
        (GET, 204),
        (OLD, 204),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GARBAGE\x01\r\n\r\n", 400),
        (b"GET /b HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"GET /b HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 300 + b"\r\n", 431),
        (b"GET /b HT", 408),
        (b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
    ],
)
def test_an_answer_under_way_is_whole_whatever_comes_behind_its_request(
    behind: bytes, status: int, pause: float
) -> None:
    """Another version, a fault, a half-sent head: the answer is framed as its request wants, and another follows."""
    pipe = after(STREAM, behind, pause)
    first, rest = split(pipe.got)
    assert answer_of(first).status == 200 and answer_of(first).body == WHOLE
    assert answer_of(rest).status == status and len(STATUS.findall(rest)) == 1
    assert pipe.closed


def test_a_stream_for_an_old_client_has_no_chunks_though_a_newer_request_follows() -> None:
    pipe = after(STREAM.replace(b"/1.1", b"/1.0").replace(b"\r\n\r\n", b"\r\nconnection: keep-alive\r\n\r\n"), GET, 0.0)
    answer = answer_of(pipe.got)
    assert (answer.status, answer.body) == (200, WHOLE)
    assert (b"connection", b"close") in answer.headers and pipe.closed


@pytest.mark.parametrize("behind", [b"A" * 70_000, GET * 5000, b"\x00"])
@pytest.mark.parametrize("pause", [0.0, 0.5])
def test_bytes_behind_the_last_request_are_dropped(behind: bytes, pause: float) -> None:
    pipe = after(CLOSING, behind, pause, seconds=2.5)
    assert answer_of(pipe.got).body == WHOLE and pipe.got.count(b"HTTP/1.1") == 1
    assert pipe.ended is not pipe.closed, "it reads on, unless all was read already"
    assert after(CLOSING, behind, pause, seconds=3.0 + LINGER_SECONDS).closed


@virtual
async def test_a_client_that_sends_rubbish_and_goes_ends_its_answer() -> None:
    """Negative control: nobody generates for a client that has left."""
    client, pipe = connected(streaming)
    client.data_received(STREAM + b"\x00")
    await asyncio.sleep(0.5)
    assert client._requests.running is not None
    client.connection_lost(None)
    await turns()
    assert client._requests.running is None
    got = pipe.got
    await asyncio.sleep(5)
    assert pipe.got == got


@pytest.mark.parametrize("early", [False, True])
@virtual
async def test_a_trailer_that_wants_the_end_gets_it(early: bool) -> None:
    """Once with an answer behind the body, once with one that comes before its end."""
    opening = b"POST /b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
    client, pipe = connected(streaming if early else reading)
    client.data_received(opening)
    await turns()
    assert bool(pipe.got) is early
    client.data_received(b"0\r\nConnection: close\r\n\r\n")
    await turns()
    assert pipe.closed and pipe.got.count(b"HTTP/1.1 20") == 1
    assert early or b"connection: close" in pipe.got


def test_empty_lines_behind_an_answer_bring_no_error() -> None:
    pipe = after(GET, b"\r\n", 0.5)
    assert pipe.closed and pipe.got.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(("version", "heard"), [(b"1.1", True), (b"1.0", False)])
@virtual
async def test_only_newer_clients_hear_that_they_may_send_their_body(version: bytes, heard: bool) -> None:
    client, pipe = connected(reading)
    client.data_received(b"POST /b HTTP/%b\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n" % version)
    await turns()
    assert (pipe.got == b"HTTP/1.1 100 Continue\r\n\r\n") is heard
    client.data_received(b"{}")
    await turns()
    assert pipe.got.endswith(b"ok")


def test_an_answer_before_the_client_may_send_its_body_ends_the_connection() -> None:
    """The client may send its body next, or another request."""
    expecting = b"POST /b HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n"
    assert b"connection: close" in after(expecting, b"", 0.0, 1.0).got
    plain = expecting.replace(b"expect: 100-continue\r\n", b"")
    assert b"connection: close" not in after(plain, b"", 0.0, 1.0).got, "negative control"


@pytest.mark.parametrize(("target", "path"), [(b"http://y:80/b?c=d", "/b"), (b"http://y", "/")])
@virtual
async def test_a_target_that_is_a_whole_url_names_the_host(target: bytes, path: str) -> None:
    seen = list[Any]()

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], [value for name, value in scope["headers"] if name == b"host"]))
        await reading(scope, receive, send)

    client, _ = connected(noting)
    client.data_received(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % target)
    await turns()
    assert seen == [(path, [b"y:80" if b":80" in target else b"y"])]
