"""Calls of the completion endpoints over HTTP."""

from typing import Any

import httpx2 as httpx

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "tiny", "prompt": "x"}


async def post(url: str, path: str, body: Any, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=None) as http:
        if isinstance(body, bytes):
            return await http.post(f"{url}{path}", content=body, headers={"content-type": "application/json"} | headers)
        return await http.post(f"{url}{path}", json=body, headers=headers)


def with_chat(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/chat/completions", CHAT | fields


def with_text(**fields: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", TEXT | fields
