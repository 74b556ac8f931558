"""Requests of the trace benchmark: completions of token ids, and the traces that the gateway made of them."""

import asyncio
import json
import ssl
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cli.connecting.http_client import Connect, HttpClient, RequestFailed, Streams
from cli.connecting.http_url import HttpUrl, parse_url
from cli.load.target import LoadTarget

ANSWER_SECONDS = 60.0
NONE: Mapping[str, str] = MappingProxyType({})
COMPLETE_SECONDS = 10.0  # longest time until every worker has reported


class Api:
    """The OpenAI API and the traces of one gateway."""

    def __init__(self, address: str, *, ca: Path | None = None) -> None:
        """`ca`: the authority of a server that speaks TLS; None: plain text."""
        self._url = parse_url(f"{'http' if ca is None else 'https'}://{address}/v1")
        self._connect = None if ca is None else _trusting(self._url, ca)
        self._target = LoadTarget(self._url, headers={}, timeout_seconds=ANSWER_SECONDS, connect=self._connect)

    async def complete(
        self, name: str, prompt: Sequence[int], *, max_tokens: int, headers: Mapping[str, str] = NONE, **fields: Any
    ) -> int:
        """One answer to its end; returns the status."""
        body = _body(name, prompt, max_tokens, fields)
        return await self._post(body, headers, pieces=None)

    async def leave(
        self, name: str, prompt: Sequence[int], *, max_tokens: int, pieces: int, headers: Mapping[str, str] = NONE
    ) -> int:
        """Begin a stream, read so many pieces of it, and go away; returns the status."""
        return await self._post(_body(name, prompt, max_tokens, {}), headers, pieces=pieces)

    async def _post(self, body: bytes, headers: Mapping[str, str], *, pieces: int | None) -> int:
        http = HttpClient(self._url, headers, self._connect)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), http.send("POST", "/v1/completions", body) as response:
                async with aclosing(response.pieces()) as arriving:
                    async for _ in arriving:
                        pieces = None if pieces is None else pieces - 1
                        if pieces == 0:
                            break
                return response.status
        finally:
            http.close()

    async def running_spans(self, name: str) -> list[dict[str, Any]]:
        """The spans of a request so far; none before it has any."""
        status, trace = await self._target.fetch("GET", f"/debug/requests/{name}", seconds=ANSWER_SECONDS)
        return list(trace["spans"]) if status == 200 else []

    async def trace(self, name: str) -> dict[str, Any]:
        """The trace of a request that has ended, once it is complete."""
        async with asyncio.timeout(COMPLETE_SECONDS):
            while True:
                status, trace = await self._target.fetch("GET", f"/debug/requests/{name}", seconds=ANSWER_SECONDS)
                if status == 200 and trace["complete"]:
                    return dict(trace)
                if status not in (200, 404):
                    raise RequestFailed(f"HTTP {status}", f"the gateway does not show request {name}")
                await asyncio.sleep(0.01)

    def close(self) -> None:
        self._target.close()


def _trusting(url: HttpUrl, ca: Path) -> Connect:
    """Connections to this server with TLS below this authority, whatever name its certificate carries."""
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False

    async def connect() -> Streams:
        return await asyncio.open_connection(url.host, url.port, ssl=context)

    return connect


def _body(name: str, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]) -> bytes:
    usual = {"stream": True, "temperature": 0, "ignore_eos": True, "min_tokens": max_tokens}
    return json.dumps(
        {"prompt": list(prompt), "max_tokens": max_tokens, "request_id": name, **usual, **fields}
    ).encode()
