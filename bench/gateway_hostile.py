"""Requests that are meant to jam a gateway, for bench/gateway.py: sent one after the other beside running streams.

Threads send ready bytes over plain sockets, so that the clients that are measured lose little time to them. What comes
back does not matter here; the tests of the front door look at it."""

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

TIMEOUT_SECONDS = 30.0
HALF_SENT = 900  # connections that begin a request and do not go on
PIECE = 1 << 20

Say = Callable[[socket.socket], None]


def attacks() -> Iterator[tuple[str, Say]]:
    """Each attack with its name; to make them takes seconds."""
    yield "choices times prompts", _body({"prompt": ["a"] * 256, "n": 128, "max_tokens": 1})
    yield "22 MB of small lists", _raw(b'{"prompt": [' + b"[5]," * 5_500_000 + b"[5]]}")
    yield "22 MB of token ids", _raw(b'{"prompt": [' + b"5," * 11_000_000 + b"5]}")
    yield "20 MB of text", _raw(b'{"prompt": "' + b"\\u00e9" * 3_300_000 + b'"}')
    yield "a header of 150 MB", _without_end(b"GET / HTTP/1.1\r\nx: ", 150)
    yield "a body beyond the limit", _without_end(_head(150 << 20), 150)
    yield "a bomb of gzip", _raw(gzip.compress(b" " * 200_000_000, 9), "content-encoding: gzip")
    yield "a nest of lists", _raw(b'{"prompt": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}")
    yield "100,000 fields", _body({f"f{number}": 1 for number in range(100_000)} | {"prompt": "x", "max_tokens": 1})
    yield "100,000 stop strings", _body({"prompt": "x", "stop": ["ab"] * 100_000})
    yield "100,000 biases", _body({"prompt": "x", "logit_bias": {str(number): 1 for number in range(1_000_000)}})
    yield "a schema without end", _body({"prompt": "x", "structured_outputs": {"json": _nested(400)}})
    yield "a hard expression", _body({"prompt": "x", "structured_outputs": {"regex": "(a|aa){1,900}" * 60}})
    yield "1000 requests in a pipeline", lambda connection: connection.sendall(_health() * 1000)
    yield "a body in chunks of one byte", _chunks
    yield "10,000 messages", _body({"messages": [{"role": "user", "content": "x"}] * 10_000}, "/v1/chat/completions")


async def attack(port: int, say: Say) -> None:
    await asyncio.to_thread(_talk, port, say)


async def half_sent(port: int, seconds: float) -> None:
    """Connections that stop in the middle of their requests, all at once, and leave after so long."""
    await asyncio.to_thread(_hold_half, port, seconds)


def _hold_half(port: int, seconds: float) -> None:
    held = []
    for number in range(HALF_SENT):
        connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        connection.sendall(_head(100) + b'{"prompt"' if number % 2 else b"POST /v1/compl")
        held.append(connection)
    time.sleep(seconds)
    for connection in held:
        connection.close()


def _talk(port: int, say: Say) -> None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS) as connection:
            try:
                say(connection)
                connection.shutdown(socket.SHUT_WR)
            except OSError:  # refused before everything was sent
                pass
            while connection.recv(65_536):
                pass
    except OSError:
        pass


def _head(size: int, *more: str, path: str = "/v1/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "connection: close", "content-type: application/json", *more]
    return "\r\n".join([*lines, f"content-length: {size}"]).encode() + b"\r\n\r\n"


def _health() -> bytes:
    return b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def _raw(content: bytes, *more: str) -> Say:
    whole = _head(len(content), *more) + content
    return lambda connection: connection.sendall(whole)


def _body(fields: dict[str, Any], path: str = "/v1/completions") -> Say:
    content = json.dumps(fields).encode()
    whole = _head(len(content), path=path) + content
    return lambda connection: connection.sendall(whole)


def _without_end(begin: bytes, mib: int) -> Say:
    def say(connection: socket.socket) -> None:
        connection.sendall(begin)
        for _ in range(mib):
            connection.sendall(b"a" * PIECE)

    return say


def _chunks(connection: socket.socket) -> None:
    head = _head(0).replace(b"content-length: 0", b"transfer-encoding: chunked")
    content = b'{"prompt": "' + b"a" * 60_000 + b'", "max_tokens": 1}'
    connection.sendall(head + b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n")


def _nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema
