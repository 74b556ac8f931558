"""A request whose client has gone is not worked on any further: not even its choices are submitted."""

import asyncio
import gc
import json
import socket
from typing import Any

import pytest

from gateway.http.connection import ClientConnection
from gateway.http.parser import RequestParser
from tests.harness.blocks import exchange, http, status_of
from tests.harness.waiting import within
from tests.unit.gateway.hostile import TEXT

CHOICES = 128


async def open_and_drop(url: str, body: dict[str, Any], times: int) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")

    def drop() -> None:
        connection = socket.create_connection((host, int(port)))
        connection.sendall(http(TEXT, json.dumps(body).encode()))
        connection.close()

    for _ in range(times):
        await asyncio.to_thread(drop)


def slow_down(core: Any, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.001) -> None:
    """Submitting a choice takes some time of the processor, as it does in a mesh."""
    submit = core.submit

    def slow(choice: Any) -> Any:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            pass
        return submit(choice)

    monkeypatch.setattr(core, "submit", slow)


async def test_most_choices_of_requests_that_are_dropped_are_never_submitted(
    url: str, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(core, monkeypatch)
    await open_and_drop(url, {"prompt": "x", "n": CHOICES, "max_tokens": 9}, 20)
    await within(10, lambda: all(stream.cancelled or stream.ended for stream in core.streams))
    await asyncio.sleep(0.3)
    assert len(core.streams) < 5 * CHOICES


async def test_all_choices_are_submitted_while_the_client_is_there(url: str, core: Any) -> None:
    """Negative control."""
    answer = await exchange(url.removeprefix("http://"), http(TEXT, json.dumps({"prompt": "x", "n": CHOICES}).encode()))
    assert status_of(answer) == 200 and len(core.streams) == CHOICES


async def test_a_client_that_leaves_while_its_template_waits_leaves_the_queue(
    url: str, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def never(*_: Any, **__: Any) -> str:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return ""

    monkeypatch.setattr("gateway.text.client_template.ClientTemplates.render", never)
    body = {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ messages }}"}
    content = json.dumps(body).encode()
    host, _, port = url.removeprefix("http://").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(http("/v1/chat/completions", content))
    await asyncio.wait_for(began.wait(), 10)
    assert not ended.is_set()
    writer.close()
    await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize(
    "sent", [b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n", b"POST /v1/compl", b"junk\r\n\r\n"]
)
async def test_a_connection_that_ends_leaves_no_garbage(url: str, core: Any, sent: bytes) -> None:
    host, _, port = url.removeprefix("http://").rpartition(":")
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await asyncio.sleep(0.02)
            writer.transport.abort()
        await asyncio.sleep(0.1)
        left = [each for each in gc.get_objects() if isinstance(each, ClientConnection | RequestParser)]
        assert left == []
    finally:
        gc.enable()
