"""Reads JSON from the gateway over HTTP, with the standard library only: above all the attached workers of /health."""

import asyncio
import json
from typing import Any

from cli.connecting.api_key import api_key_headers
from mesh.config.config_checks import split_address

ANSWER_SECONDS = 2.0


async def health(http_address: str) -> dict[str, Any] | None:
    """The gateway's answer while it can serve, else None."""
    return await get_json(http_address, "/health")


async def get_json(http_address: str, path: str) -> dict[str, Any] | None:
    """The object with which the gateway answers this path; None if it gives none."""
    try:
        # wait_for of Python 3.11 can swallow a cancellation, and with it the time limit of the caller.
        async with asyncio.timeout(ANSWER_SECONDS):
            return await _get(http_address, path)
    except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError):
        return None


async def speaks_http(address: str) -> bool:
    """Whether the server at this address answers a request over HTTP/1, as the gateway's HTTP port does."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(*split_address(address))
            try:
                writer.write(f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n".encode())
                return (await reader.read(5)) == b"HTTP/"
            finally:
                writer.close()
    except (TimeoutError, OSError, ValueError):
        return False


async def _get(http_address: str, path: str) -> dict[str, Any] | None:
    reader, writer = await asyncio.open_connection(*split_address(http_address))
    try:
        also = "".join(f"{name}: {value}\r\n" for name, value in api_key_headers().items())
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {http_address}\r\n{also}Connection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if head.split(b" ", 2)[1:2] != [b"200"]:
        return None
    answer = json.loads(body)
    return answer if isinstance(answer, dict) else None
