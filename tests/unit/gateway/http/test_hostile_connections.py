"""Connections that are slow, half open or too many give way; none of them blocks the event loop."""

import asyncio
import socket
import time
from typing import Any

import httpx2 as httpx
import pytest

from gateway.http import connection
from tests.harness.blocks import MOST_SECONDS, exchange, http, status_of, talk, watching
from tests.harness.longest_pass import best_of
from tests.unit.gateway.hostile import TEXT, served, set_limits


async def slow(url: str, *parts: bytes, every: float = 0.1) -> tuple[bytes, float]:
    """Send the parts slowly; what came back, and how long the connection lasted."""

    def say(connection: socket.socket) -> None:
        for part in parts:
            connection.sendall(part)
            time.sleep(every)

    began = time.monotonic()
    answer = await asyncio.to_thread(talk, url.removeprefix("http://"), say)
    return answer, time.monotonic() - began


async def test_slow_headers_and_slow_bodies_end(url: str, core: Any) -> None:
    set_limits(core, header_seconds=0.3, body_seconds=0.3)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900\r\n"
    for parts in (
        [b"GET /", *[b"x"] * 8],
        [head, *[b"a: b\r\n"] * 8],
        [head + b"\r\n", *[b" "] * 8],
        [*[b"\r\n"] * 8],
    ):
        answer, seconds = await slow(url, *parts)
        assert status_of(answer) == 408 and b"x-should-retry: true" in answer and seconds < 10
    answer, seconds = await slow(url)
    assert answer == b"" and seconds < 10, "a client that sends nothing gets nothing"
    assert core.streams == []
    set_limits(core, header_seconds=20.0, body_seconds=20.0)
    whole = http(TEXT, b'{"prompt": "x"}')
    answer, _ = await slow(url, whole[:20], whole[20:-5], whole[-5:])
    assert status_of(answer) == 200, "negative control"


async def test_half_sent_requests_give_way_when_connections_run_out(url: str, core: Any) -> None:
    set_limits(core, connections=20)
    where = url.removeprefix("http://").rpartition(":")
    half = list[socket.socket]()
    try:
        for _ in range(60):
            half.append(await asyncio.to_thread(socket.create_connection, (where[0], int(where[2]))))
            half[-1].sendall(b"GET /health HT")
        assert await served(url, http("/health", b"", method="GET"), 200) is None
    finally:
        for each in half:
            each.close()


async def test_with_all_connections_busy_another_one_gets_503(url: str, core: Any) -> None:
    core.ends = False
    set_limits(core, connections=2)
    async with httpx.AsyncClient(timeout=20) as client:
        body = {"prompt": "x", "stream": True}
        async with client.stream("POST", f"{url}{TEXT}", json=body), client.stream("POST", f"{url}{TEXT}", json=body):
            answer = await exchange(url.removeprefix("http://"), http("/health", b"", method="GET"))
            assert status_of(answer) == 503 and b"retry-after: 1" in answer and b"TOO_MANY_CONNECTIONS" in answer
    async with asyncio.timeout(20):
        while status_of(await exchange(url.removeprefix("http://"), http("/health", b"", method="GET"))) != 200:
            await asyncio.sleep(0.05)


async def test_a_pipeline_of_requests_waits_at_the_socket(url: str, core: Any) -> None:
    one = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = http("/health", b"", method="GET")

    async def attempt() -> tuple[None, float]:
        async with watching() as watch:
            answer = await exchange(url.removeprefix("http://"), one * 3000 + last)
        assert answer.count(b"HTTP/1.1 200 OK") == 3001
        return None, watch.longest_seconds

    await best_of(attempt, MOST_SECONDS)


@pytest.mark.parametrize("rest", [0.0, 0.3])
async def test_a_request_whose_body_comes_behind_an_answer_is_answered_too(
    url: str, core: Any, monkeypatch: Any, rest: float
) -> None:
    """The answer to the first request comes while the body of the second one is under way, and cuts nothing off."""
    monkeypatch.setattr(connection, "LINGER_SECONDS", 0.05)
    last = http(TEXT, b'{"prompt": "x", "max_tokens": 1}')
    first = last.replace(b"connection: close\r\n", b"")
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    writer.write(first + last[:-3])
    answer = await asyncio.wait_for(reader.readuntil(b'"text_completion"'), 20)
    await asyncio.sleep(rest)
    writer.write(last[-3:])
    answer += await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer.count(b"HTTP/1.1 200 OK") == 2


async def test_rubbish_behind_requests_ends_the_connection_behind_their_answers(
    url: str, core: Any, caplog: pytest.LogCaptureFixture
) -> None:
    body = b'{"prompt": "x", "stream": %s}'
    for stream, end in ((b"true", b"[DONE]"), (b"false", b'"usage"')):
        whole = http(TEXT, body % stream).replace(b"connection: close\r\n", b"")
        for count in (1, 2):
            answer, seconds = await slow(url, whole, whole * (count - 1) + b"\x00\x00", every=0.2)
            assert seconds < 10 and answer.count(end) == answer.count(b"HTTP/1.1 200 ") == count
            assert answer.rpartition(end)[2].count(b"HTTP/1.1 400 ") == 1
    assert "Exception" not in caplog.text and len(core.streams) == 6


async def test_a_body_of_tiny_chunks_leaves_others_their_turn(url: str, core: Any) -> None:
    head = http(TEXT, b"", "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
    await served(url, head + b"1\r\n \r\n" * 300_000 + b"0\r\n\r\n", 400)
