"""The spans of one request, as the gateway keeps them of its last requests (GET /debug/requests)."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

LAST_REQUESTS = 100


async def spans_of_a_request(http: str) -> list[Mapping[str, Any]]:
    """The spans of a remote request that ended well, the one with the most spans; empty when there is none."""
    return await asyncio.to_thread(_read, http)


def _read(http: str) -> list[Mapping[str, Any]]:
    try:
        requests = _get(f"http://{http}/debug/requests?limit={LAST_REQUESTS}")["requests"]
        whole = [one for one in requests if (one["path"], one["status"]) == ("remote", "ok")]
        traces = [_get(f"http://{http}/debug/requests/{one['request_id']}")["spans"] for one in whole[:20]]
    except urllib.error.HTTPError:
        return []
    return max(traces, key=len, default=[])


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)
