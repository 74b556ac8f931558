"""Reads JSON from the gateway over HTTP, with the standard library only: above all the attached workers of /health."""

import asyncio
from typing import Any

from cli.connecting.api_key import api_key_headers
from cli.connecting.http_client import HttpClient, RequestFailed
from cli.connecting.http_url import HttpUrl
from mesh.config.config_checks import split_address

ANSWER_SECONDS = 2.0


async def health(http_address: str) -> dict[str, Any] | None:
    """The gateway's answer while it can serve, else None."""
    return await get_json(http_address, "/health")


async def get_json(http_address: str, path: str) -> dict[str, Any] | None:
    """The object with which the gateway answers this path; None if it gives none."""
    try:
        client = HttpClient(_url(http_address), api_key_headers(), keeps=False)
        status, answer = await client.fetch("GET", path, seconds=ANSWER_SECONDS)
    except (RequestFailed, ValueError):
        return None
    return answer if status == 200 and isinstance(answer, dict) else None


async def speaks_http(address: str) -> bool:
    """Whether the server at this address answers a request over HTTP/1, as the gateway's HTTP port does."""
    try:
        client = HttpClient(_url(address), {}, keeps=False)
        async with asyncio.timeout(ANSWER_SECONDS), client.send("GET", "/health"):
            return True
    except (RequestFailed, TimeoutError, ValueError):
        return False


def _url(address: str) -> HttpUrl:
    return HttpUrl(False, *split_address(address), "")
