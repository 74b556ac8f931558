"""cli/connecting: one HTTP client for all commands, and what it makes of servers that answer oddly or not at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from cli.connecting.api_key import api_key_headers
from cli.connecting.health import get_json, health, speaks_http
from cli.connecting.http_client import HttpClient, RequestFailed
from cli.connecting.http_url import HttpUrl
from mesh.config.settings import API_KEY


@dataclass
class SameAnswer:
    """A server that gives each request these bytes and keeps the connection."""

    answer: bytes
    connections: int = 0
    heads: list[str] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(self.answer)
        except asyncio.IncompleteReadError:
            self.closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[tuple[SameAnswer, str]]:
    what = SameAnswer(answer)
    server = await asyncio.start_server(what.serve, "127.0.0.1", 0)
    async with server:
        yield what, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def whole(body: object, status: str = "200 OK") -> bytes:
    text = json.dumps(body)
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


async def test_json_of_a_gateway_is_read_with_the_key_and_no_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would keep the connection."""
    monkeypatch.setenv(API_KEY, "sk-of-mine")
    async with listening(whole({"prefill": 1})) as (server, address), asyncio.timeout(10):
        assert await get_json(address, "/load") == {"prefill": 1} == await health(address)
        await server.closed.wait()
    assert server.connections == 2
    for head, path in zip(server.heads, ("/load", "/health"), strict=True):
        assert head.startswith(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n")
        assert "authorization: Bearer sk-of-mine\r\n" in head and "connection: close\r\n" in head


async def test_a_client_that_keeps_connections_uses_one_for_all_requests() -> None:
    """Negative control."""
    async with listening(whole([1])) as (server, address), asyncio.timeout(10):
        client = HttpClient(HttpUrl(False, "127.0.0.1", int(address.rpartition(":")[2]), ""), {})
        for _ in range(2):
            assert await client.fetch("GET", "/a", seconds=5) == (200, [1])
        client.close()
        await server.closed.wait()
    assert server.connections == 1 and "connection" not in server.heads[0].lower()


@pytest.mark.parametrize(
    ("answer", "http"),
    [
        (whole({"error": "none"}, "503 Service Unavailable"), True),
        (whole(["no", "object"]), True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n{{{{", True),
        (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n", True),
        (b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\n", False),  # as gRPC begins
    ],
)
async def test_other_answers_are_none_and_still_show_whether_the_server_speaks_http(answer: bytes, http: bool) -> None:
    async with listening(answer) as (_, address):
        assert await health(address) is None and await speaks_http(address) == http


async def test_where_no_server_is_there_is_no_answer() -> None:
    async with listening(b"") as (_, address):
        pass
    for nowhere in (address, "no-port"):
        assert await health(nowhere) is None and not await speaks_http(nowhere)


async def test_a_redirect_is_named_and_not_followed() -> None:
    answer = b"HTTP/1.1 301 Moved\r\nLocation: https://b/\x1b[1m\r\nContent-Length: 0\r\n\r\n"
    async with listening(answer) as (_, address):
        client = HttpClient(HttpUrl(False, "127.0.0.1", int(address.rpartition(":")[2]), ""), {}, keeps=False)
        with pytest.raises(RequestFailed, match=r"the server redirects to https://b/ \[1m; redirects are not"):
            await client.fetch("GET", "/", seconds=5)


def test_a_key_that_is_given_replaces_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "one")
    assert api_key_headers("two") == {"authorization": "Bearer two"} != api_key_headers()
    monkeypatch.delenv(API_KEY)
    assert api_key_headers() == {}
