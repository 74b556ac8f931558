"""Requests of the trace benchmark: completions of token ids, and the traces that the gateway made of them."""

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from cli.load.connection import HttpClient, parse_url
from cli.load.record import RequestFailed
from cli.load.target import LoadTarget

ANSWER_SECONDS = 60.0
COMPLETE_SECONDS = 10.0  # longest time until every worker has reported


class Api:
    """The OpenAI API and the traces of one gateway."""

    def __init__(self, address: str) -> None:
        url = parse_url(f"http://{address}/v1")
        self._http = HttpClient(url, {})
        self._target = LoadTarget(url, headers={}, timeout_seconds=ANSWER_SECONDS)

    async def complete(self, name: str, prompt: Sequence[int], *, max_tokens: int, **fields: Any) -> int:
        """One answer to its end; returns the status. A field that is None is left out."""
        async with asyncio.timeout(ANSWER_SECONDS):
            body = _body(name, prompt, max_tokens, fields)
            async with self._http.send("POST", "/v1/completions", body) as response:
                await response.body()
                return response.status

    async def leave(self, name: str, prompt: Sequence[int], *, max_tokens: int, pieces: int) -> None:
        """Begin a stream, read so many pieces of it, and go away."""
        async with asyncio.timeout(ANSWER_SECONDS):
            body = _body(name, prompt, max_tokens, {})
            async with self._http.send("POST", "/v1/completions", body) as response:
                async with aclosing(response.pieces()) as arriving:
                    async for _ in arriving:
                        pieces -= 1
                        if pieces <= 0:
                            return

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
        self._http.close()
        self._target.close()


def _body(name: str, prompt: Sequence[int], max_tokens: int, fields: dict[str, Any]) -> bytes:
    usual = {"stream": True, "temperature": 0, "ignore_eos": True, "min_tokens": max_tokens}
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "request_id": name, **usual, **fields}
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()
