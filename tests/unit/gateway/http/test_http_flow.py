"""Streams over HTTP: a chunk for each token, clients that do not read, clients that leave a backlog, idle streams."""

import asyncio
import json
import select
from random import Random
from typing import Any

import pytest

from gateway.http.writing import UNSENT_BYTES, WRITE_BYTES
from gateway.prompts.assets import Assets
from gateway.sequencing.requests import RequestPhase
from mesh.config.door_config import DoorConfig
from mesh.errors import Unavailable
from tests.harness.longest_pass import LongestPass, best_of
from tests.harness.served_api import served_api
from tests.harness.waiting import within
from tests.unit.gateway.emitting_core import EmittingCore, read_chunks, read_raw, send_request
from tests.unit.gateway.fake_mesh import mesh

BODY: dict[str, Any] = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 500}
LONGEST_PASS_SECONDS = 0.05
READER_BYTES = 16 * 1024


async def test_a_client_that_keeps_up_gets_one_token_in_each_chunk(assets: Assets) -> None:
    core = EmittingCore()
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY | {"max_tokens": 20})
        await within(20, lambda: bool(core.requests))
        for count in (1, 1, 5, 1, 11):
            core.emit(count)
            await asyncio.sleep(0.01)
        core.emit()
        core.mesh.sequencer.end(core.requests[0], Unavailable("enough"))
        chunks = await read_chunks(connection)
        connection.close()
    texts = [json.loads(chunk.removeprefix(b"data: "))["choices"][0]["text"] for chunk in chunks[:20]]
    assert "".join(texts) == "".join(chr(97 + position % 26) for position in range(20))
    assert all(len(text) == 1 for text in texts)


async def test_an_unread_stream_pauses_and_holds_no_more_than_it_may(assets: Assets) -> None:
    core = EmittingCore(mesh=mesh(reader_bytes=READER_BYTES, model="tiny"))
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY | {"logprobs": 5})
        await within(20, lambda: bool(core.requests))
        (request,) = core.requests
        while request.phase is RequestPhase.OPEN:
            core.emit(top=5)
            await asyncio.sleep(0.002)
        assert request.phase is RequestPhase.PAUSED and request.decode is None
        assert READER_BYTES < request.unread.bytes < 16 * READER_BYTES
        positions = request.next_position
        reading = asyncio.ensure_future(read_chunks(connection))
        await within(20, lambda: request.phase is RequestPhase.OPEN)
        assert request.ticket is not None and request.ticket.attempt == 2
        while request.phase is RequestPhase.OPEN and request.next_position < 500:
            core.emit(top=5)
            await asyncio.sleep(0)
        core.mesh.sequencer.end(request, Unavailable("enough"))
        chunks = await reading
        connection.close()
    found = [json.loads(chunk.removeprefix(b"data: ")) for chunk in chunks if chunk.startswith(b'data: {"id"')]
    text = "".join(each["choices"][0]["text"] for each in found)
    assert len(text) > positions
    assert text == "".join(chr(97 + position % 26) for position in range(len(text)))


async def test_a_client_that_takes_nothing_is_disconnected_and_its_request_ends(assets: Assets) -> None:
    core = EmittingCore(limits=DoorConfig(reader_seconds=0.2))
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY | {"logprobs": 5, "n": 4})
        await within(20, lambda: len(core.requests) == 4)
        while core.running:
            core.emit(2, top=5)
            await asyncio.sleep(0.002)
        await within(20, lambda: bool(core.errors))
        connection.close()
    assert core.errors == ["READER_STALLED"]


async def test_a_slow_client_that_takes_a_little_now_and_then_stays(assets: Assets) -> None:
    core = EmittingCore(limits=DoorConfig(reader_seconds=0.4))
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY | {"logprobs": 5, "n": 4})
        await within(20, lambda: len(core.requests) == 4)
        loop = asyncio.get_running_loop()
        for _ in range(60):
            core.emit(6, top=5)
            await loop.sock_recv(connection, 8192)
            await asyncio.sleep(0.02)
        assert core.running and not core.errors
        connection.close()
        await within(20, lambda: not core.running)


@pytest.mark.parametrize("chat", [True, False])
async def test_clients_that_leave_a_backlog_do_not_stop_the_loop(assets: Assets, chat: bool) -> None:
    core = EmittingCore()
    body = BODY | {"n": 4, "max_tokens": 480}
    path = "/v1/completions"
    if chat:
        path, _ = "/v1/chat/completions", body.pop("prompt")
        body |= {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20}
    else:
        body |= {"logprobs": 5}

    async def attempt() -> tuple[None, float]:
        core.requests.clear()
        async with served_api(core, assets) as address:
            connections = [await send_request(address, body, path) for _ in range(20)]
            await within(60, lambda: len(core.requests) == 80)
            with LongestPass() as sending:
                for _ in range(10):
                    core.emit(8, top=20)
                    await asyncio.sleep(0.001)
            with LongestPass() as leaving:
                for _ in range(100):
                    await asyncio.sleep(0)
                for connection in connections:
                    connection.close()
                await within(60, lambda: not core.running)
        return None, max(sending.seconds, leaving.seconds)

    await best_of(attempt, LONGEST_PASS_SECONDS)
    assert all(not request.unread.bytes for request in core.requests)


async def test_an_idle_stream_gets_comments_before_and_between_its_tokens(assets: Assets) -> None:
    core = EmittingCore(limits=DoorConfig(keep_alive_seconds=0.05))
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY)
        head, _, body = (await read_raw(connection, b"keep-alive\n\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and body == b"e\r\n: keep-alive\n\n\r\n"
        core.emit()
        assert b'"text":"a"' in await read_raw(connection, b"keep-alive")
        core.mesh.sequencer.end(core.requests[0], Unavailable("enough"))
        rest = await read_raw(connection)
        assert b'"UNAVAILABLE"' in rest and rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        connection.close()


async def test_a_stream_that_moves_gets_no_comment(assets: Assets) -> None:
    core = EmittingCore(limits=DoorConfig(keep_alive_seconds=5.0))
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY)
        await within(20, lambda: bool(core.requests))
        core.emit(3)
        core.mesh.sequencer.end(core.requests[0], Unavailable("enough"))
        assert not any(chunk.startswith(b":") for chunk in await read_chunks(connection))
        connection.close()


async def test_connections_dropped_in_mid_request_leave_nothing_running(assets: Assets) -> None:
    core, random = EmittingCore(), Random(1)
    async with served_api(core, assets) as address:
        for _ in range(10):
            connections = [await send_request(address, BODY | {"n": 1 + number % 3}) for number in range(20)]
            for connection in connections:
                if random.random() < 0.5:
                    core.emit()
                    await asyncio.sleep(0)
                connection.close()
        await within(60, lambda: len(core.requests) > 0 and not core.running)
        await within(20, lambda: not any("_stream" in repr(each) for each in asyncio.all_tasks()))
        assert not core.mesh.sequencer.requests
        connection = await send_request(address, BODY)
        await within(20, lambda: bool(core.running))
        connection.close()
        await within(20, lambda: not core.running)


def test_what_waits_for_a_client_below_the_gateway_is_small_too() -> None:
    assert WRITE_BYTES + UNSENT_BYTES <= 64 * 1024


async def test_rubbish_behind_a_stream_gets_its_error_behind_the_tokens(
    assets: Assets, caplog: pytest.LogCaptureFixture
) -> None:
    core, loop = EmittingCore(), asyncio.get_running_loop()
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY)
        await within(20, lambda: bool(core.requests))
        await loop.sock_sendall(connection, b"rubbish\r\n\r\n")
        await asyncio.sleep(0.05)
        assert not select.select([connection], [], [], 0)[0], "the answer is owed"
        core.emit(3)
        core.mesh.sequencer.end(core.requests[0], Unavailable("enough"))
        answer = await read_raw(connection)
        stream, _, error = answer.partition(b"[DONE]")
        assert answer.startswith(b"HTTP/1.1 200 ") and stream.count(b"data: ") > 3 and b"HTTP/1.1 400 " in error
        connection.close()
    assert core.errors == ["UNAVAILABLE"] and not [
        each for each in caplog.records if each.levelname in ("WARNING", "ERROR")
    ]


async def test_the_next_request_of_a_pipeline_waits_for_a_reader_that_is_behind(assets: Assets) -> None:
    core, loop = EmittingCore(mesh=mesh(reader_bytes=READER_BYTES, model="tiny")), asyncio.get_running_loop()
    async with served_api(core, assets) as address:
        connection = await send_request(address, BODY | {"logprobs": 5})
        await within(20, lambda: bool(core.requests))
        await loop.sock_sendall(connection, b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        while core.requests[0].phase is RequestPhase.OPEN:
            core.emit(top=5)
            await asyncio.sleep(0.002)
        reading = asyncio.ensure_future(read_raw(connection, b'"prefill":1'))
        await within(20, lambda: core.requests[0].phase is RequestPhase.OPEN)
        core.mesh.sequencer.end(core.requests[0], Unavailable("enough"))
        stream, _, health = (await reading).partition(b"data: [DONE]\n\n")
        assert stream.count(b'data: {"id"') == core.requests[0].next_position
        assert b"HTTP/1.1 200 OK" in health
        connection.close()
