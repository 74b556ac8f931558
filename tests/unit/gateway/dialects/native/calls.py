"""Calls of the endpoints that gateway/native serves: whole, streamed and refused."""

import json
from typing import Any

import httpx2 as httpx

TOKENS, SGLANG = "/inference/v1/generate", "/generate"
HELLO = [*b"hello world", 257]


async def post(url: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url, timeout=None) as client:
        return await client.post(path, json=body)


async def whole(url: str, path: str, **body: Any) -> Any:
    answer = await post(url, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def frames(url: str, path: str, **body: Any) -> list[Any]:
    text = (await post(url, path, **body, stream=True)).text
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def refused(url: str, path: str, **body: Any) -> tuple[str, str]:
    """The named field, and the message."""
    answer = await post(url, path, **body)
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]["param"], answer.json()["error"]["message"]
