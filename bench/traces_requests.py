"""Requests of the trace benchmark: streamed completions of token ids, and the traces that the gateway made of them."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from cli.load.record import RequestFailed
from cli.load.target import LoadTarget

ANSWER_SECONDS = 60.0
COMPLETE_SECONDS = 10.0  # longest time until every worker has reported


async def stream_completion(
    target: LoadTarget, name: str, prompt: Sequence[int], *, max_tokens: int, **fields: Any
) -> int:
    """Stream one answer to its end; the status. A status other than 200 has no stream."""
    body = {"prompt": list(prompt), "max_tokens": max_tokens, "stream": True, "temperature": 0, "request_id": name}
    data = json.dumps(body | {"ignore_eos": True} | fields).encode()
    async with asyncio.timeout(ANSWER_SECONDS), target.client.send("POST", "/v1/completions", data) as response:
        await response.body()
        return response.status


async def fetch_trace(target: LoadTarget, name: str) -> dict[str, Any]:
    """The trace of a request that has ended, once it is complete."""
    async with asyncio.timeout(COMPLETE_SECONDS):
        while True:
            status, trace = await target.fetch("GET", f"/debug/requests/{name}", seconds=ANSWER_SECONDS)
            if status == 200 and trace["complete"]:
                return dict(trace)
            if status not in (200, 404):
                raise RequestFailed(f"HTTP {status}", f"the gateway does not show request {name}")
            await asyncio.sleep(0.01)
