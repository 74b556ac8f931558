"""Heads of requests by the rules of HTTP: versions, the Host header, transfer codings; answers for HTTP/1.0."""

import asyncio
import json
import socket
import time
from typing import Any

import pytest

from gateway.http.head import fault_of
from tests.harness.blocks import exchange, status_of, talk
from tests.unit.gateway.hostile import TEXT


def whole(version: str, body: dict[str, Any], *headers: str) -> bytes:
    content = json.dumps(body).encode()
    lines = [f"POST {TEXT} HTTP/{version}", "content-type: application/json", f"content-length: {len(content)}"]
    return "\r\n".join([*lines, *headers]).encode() + b"\r\n\r\n" + content


@pytest.mark.parametrize("parallel", [1, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_of_http_1_0_gets_the_same_body_and_no_chunks(
    stream: bool, parallel: int, url: str, core: Any
) -> None:
    body = {"prompt": "ab", "max_tokens": 5, "stream": stream, "n": parallel}
    where = url.removeprefix("http://")
    old = await exchange(where, whole("1.0", body))
    new = await exchange(where, whole("1.1", body, "host: localhost", "connection: close"))
    assert status_of(old) == status_of(new) == 200
    head, _, content = old.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head and b"connection: close" in head
    if stream:
        assert b"transfer-encoding: chunked" in new, "negative control"
        assert content.startswith(b"data: {") and content.endswith(b"\n\ndata: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in content.split(b"\n\n")[:-2]]
        assert {choice["index"] for event in events for choice in event["choices"]} == set(range(parallel))
    else:
        assert len(json.loads(content)["choices"]) == parallel


@pytest.mark.parametrize(
    ("request_line", "headers", "status", "words"),
    [
        ("GET /health HTTP/1.1", [], 400, b"no Host headers"),
        ("GET /health HTTP/1.1", ["host: localhost", "Host: 127.0.0.1"], 400, b"2 Host headers"),
        ("GET /health HTTP/2.0", ["host: localhost"], 505, b"not HTTP/2.0"),
        ("GET /health", [], 505, b"not HTTP/0.9"),
        ("POST /v1/completions HTTP/1.1", ["host: localhost", "transfer-encoding: gzip, chunked"], 501, b"chunked"),
        ("GET /health HTTP/1.1", ["host: localhost", "connection: close"], 200, b'"status"'),
        ("GET http://localhost/health HTTP/1.1", ["host: localhost", "connection: close"], 200, b'"status"'),
        ("GET /health HTTP/1.0", [], 200, b'"status"'),
    ],
)
async def test_heads_that_proxies_read_otherwise_are_refused(
    request_line: str, headers: list[str], status: int, words: bytes, url: str, core: Any
) -> None:
    raw = "\r\n".join([request_line, *headers]).encode() + b"\r\n\r\n"
    answer = await exchange(url.removeprefix("http://"), raw)
    assert status_of(answer) == status and words in answer


def test_chunked_is_the_only_coding_and_only_of_http_1_1() -> None:
    host = (b"host", b"localhost")
    assert fault_of("1.1", [host, (b"transfer-encoding", b"Chunked ")]) is None
    for version, codings in (("1.1", [b"identity"]), ("1.1", [b"chunked", b"chunked"]), ("1.0", [b"chunked"])):
        fault = fault_of(version, [host, *((b"transfer-encoding", coding) for coding in codings)])
        assert fault is not None and fault[0] == 501


@pytest.mark.parametrize(
    "wish",
    [
        ["connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAAP__"],
        ["connection: Upgrade", "upgrade: websocket"],
        ["connection: Upgrade", "upgrade: h2c", "transfer-encoding: chunked"],
    ],
)
async def test_a_wish_to_upgrade_is_not_heard_and_the_body_is_read(wish: list[str], url: str, core: Any) -> None:
    first = whole("1.1", {"prompt": "first", "max_tokens": 1}, "host: localhost", *wish)
    if "transfer-encoding: chunked" in wish:
        head, _, body = first.partition(b"\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"content-length"))
        first = head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    second = whole("1.1", {"prompt": "second", "max_tokens": 1}, "host: localhost", "connection: close")
    for cut in (len(first), first.index(b"\r\n\r\n") + 2, len(first) - 3):

        def say(connection: socket.socket, cut: int = cut) -> None:
            connection.sendall(first[:cut])
            time.sleep(0.05)
            connection.sendall(first[cut:] + second)

        answer = await asyncio.to_thread(talk, url.removeprefix("http://"), say)
        assert answer.count(b"HTTP/1.1 200 OK") == 2
    prompts = [bytes(stream.choice.prompt) for stream in core.streams]
    assert prompts == [b"first", b"second"] * 3


async def test_connect_is_refused(url: str, core: Any) -> None:
    answer = await exchange(url.removeprefix("http://"), b"CONNECT localhost:80 HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert status_of(answer) in (400, 404, 405)
