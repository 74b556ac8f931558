"""The last requests of a gateway with their spans, as `GET /debug/requests` gives them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from cli.connecting.health import get_json

LOOK_SECONDS = 0.2  # between two looks at the gateway
LATEST = 100

Json = dict[str, Any]


async def finished(http_address: str) -> AsyncIterator[Json]:
    """Every request that ends from now on, once all workers have reported, the oldest first."""
    seen = {each["trace_id"] + each["request_id"] for each in await _latest(http_address) if each["complete"]}
    while True:
        for each in reversed(await _latest(http_address)):
            key = each["trace_id"] + each["request_id"]
            if each["complete"] and key not in seen:
                seen.add(key)
                whole = await get_json(http_address, f"/debug/requests/{quote(each['request_id'])}")
                if whole is not None:
                    yield whole
        await asyncio.sleep(LOOK_SECONDS)


async def last_finished(http_address: str, timeout_seconds: float) -> Json | None:
    """The newest request, once it is complete; None if that takes longer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    while loop.time() < deadline:
        latest = await _latest(http_address)
        if latest and latest[0]["complete"]:
            return await get_json(http_address, f"/debug/requests/{quote(latest[0]['request_id'])}")
        await asyncio.sleep(LOOK_SECONDS)
    return None


async def _latest(http_address: str) -> list[Json]:
    answer = await get_json(http_address, f"/debug/requests?limit={LATEST}")
    return list(answer["requests"]) if answer else []
