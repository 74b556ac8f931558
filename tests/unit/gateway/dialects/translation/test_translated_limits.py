"""Large bodies for the other chat APIs are refused, and neither parsing nor translating them blocks the event loop."""

import json
import threading
from typing import Any

import pytest

from gateway.dialects.translation.chat import LONG, when_idle
from tests.harness.blocks import http
from tests.unit.gateway.hostile import served

MESSAGE = {"role": "user", "content": "a"}
BLOCK = {"type": "text", "text": "a"}
HINTED = BLOCK | {"cache_control": {"type": "ephemeral"}}
TOOL = {"name": "add", "description": "x" * 30_000, "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": [MESSAGE] * 30_000}),
        ("/v1/responses", {"input": "é" * 4_000_000, "instructions": "x" * 4_000_000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": [HINTED] * 20_000}]}),
        ("/v1/messages", {"messages": [MESSAGE], "system": [BLOCK] * 30_000, "tools": [TOOL] * 100}),
        ("/v1/messages/count_tokens", {"messages": [MESSAGE] * 30_000}),
    ],
)
async def test_a_large_conversation_is_refused_without_a_block(url: str, core: Any, path: str, body: Any) -> None:
    error = await served(url, http(path, json.dumps(body).encode()), 400)
    assert error["param"] in ("input", "messages", "tools") and core.streams == []


async def test_only_a_long_conversation_is_translated_in_a_thread() -> None:
    long, short = [["a"] * LONG], [["a"] * 10]
    assert await when_idle(threading.get_ident, long) != threading.get_ident()
    assert await when_idle(threading.get_ident, short) == threading.get_ident(), "negative control"
