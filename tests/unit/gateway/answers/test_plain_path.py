"""Plain tokens of a client that keeps up leave at once; whatever else comes, the client gets the same text in order."""

import asyncio
import gc
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.prompts.assets import Assets, load_assets
from gateway.sequencing.requests import GatewayRequest, RequestPhase
from gateway.sequencing.streams import RequestStream
from mesh.errors import BatonError, Cancelled, Unavailable
from mesh.messages.jobs import End, Token
from mesh.messages.packed_tokens import PackedTokens
from mesh.messages.reports import TokenOf, Tokens
from tests.harness.served_api import served_api
from tests.harness.waiting import within
from tests.unit.gateway.emitting_core import EmittingCore, read_chunks, read_raw, send_request
from tests.unit.gateway.fake_mesh import mesh

COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 500}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "x"}],
    "stream": True,
    "max_tokens": 300,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
LONG_WAY = {"stream_options": {"continuous_usage_stats": True}}  # every token of such a stream goes to its reader
BYTES = [*b"plain words, <tool_call> and STOP signs ", 0xC3, 0xA9, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xE6]


def give(
    core: EmittingCore,
    request: GatewayRequest,
    ids: list[int],
    end: End = End.NONE,
    *,
    packed: bool = False,
) -> None:
    """One message with these tokens of one request; as columns with `packed`."""
    assert request.ticket is not None
    first, ticket, count = request.next_position, request.ticket, len(ids)
    worker, ends = core.mesh.workers[core.mesh.serving(request)[1]], [End.NONE] * (count - 1) + [end]
    if packed:
        columns = [ticket.pack()] * count, range(first, first + count), ids, [-0.5] * count, ends
        core.mesh.sequencer.on_tokens(worker, PackedTokens(*columns))
    else:
        tokens = [Token(first + i, token, -0.5, end=ends[i]) for i, token in enumerate(ids)]
        core.mesh.sequencer.on_tokens(worker, Tokens(tuple(TokenOf(ticket, token) for token in tokens)))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def texts_of(chunks: list[bytes]) -> list[str]:
    found = []
    for chunk in chunks:
        for line in chunk.splitlines():
            if line.startswith(b'data: {"id"'):
                for choice in json.loads(line.removeprefix(b"data: "))["choices"]:
                    found.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return [text for text in found if text]


async def stream_of(
    assets: Assets, body: dict[str, Any], path: str, messages: list[list[int]], *, pauses: bool = True, columns: int = 2
) -> tuple[list[str], list[bytes], int]:
    """Texts and chunks of a stream that gets these messages, and how many tokens left before any task ran. One of so
    many `columns` messages is no message of columns."""
    core, at_once = EmittingCore(), 0
    async with served_api(core, assets) as address:
        connection = await send_request(address, body, path)
        await within(20, lambda: core.requests)
        (request,) = core.requests
        reading = asyncio.ensure_future(read_chunks(connection))
        for number, ids in enumerate(messages):
            if request.ended:
                break
            give(core, request, ids, packed=number % columns > 0)
            at_once += not len(request.unread)
            if pauses:
                await settle()
        if not request.ended:
            give(core, request, [ord("z")], End.LENGTH)
        chunks = await asyncio.wait_for(reading, 20)
        connection.close()
    return texts_of(chunks), chunks, at_once


async def test_plain_tokens_leave_before_any_task_runs_and_others_wait_for_one(assets: Assets) -> None:
    core = EmittingCore()
    async with served_api(core, assets) as address:
        connection = await send_request(address, COMPLETION)
        await within(20, lambda: core.requests)
        (request,) = core.requests
        waited = []
        for token in (97, 98, 99, 0xC3, 0xA9, 100):
            give(core, request, [token])
            waited.append(len(request.unread))
            await settle()
        assert waited == [1, 0, 0, 1, 1, 0], "the first token, and those of a broken character, take the long way"
        give(core, request, [101, 102, 0xE6, 103, 104])
        assert len(request.unread) == 3, "what comes behind a token that waits stays behind it"
        await settle()
        give(core, request, [122], End.LENGTH)
        chunks = await read_chunks(connection)
        connection.close()
    assert "".join(texts_of(chunks)) == "abcédef�ghz"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_nothing_leaves_before_the_head_where_the_first_token_has_no_text(assets: Assets, path: str) -> None:
    core = EmittingCore()
    async with served_api(core, assets) as address:
        connection = await send_request(address, COMPLETION if "chat" not in path else CHAT, path)
        await within(20, lambda: core.requests)
        (request,) = core.requests
        for token in (258, 97, 98, 99):  # a special token leaves no text
            give(core, request, [token])
            await settle()
        give(core, request, [122], End.LENGTH)
        raw = await read_raw(connection)
        connection.close()
    assert raw.startswith(b"HTTP/1.1 200 OK")
    assert "".join(texts_of([raw])) == "abcz"


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["completion", "chat", "tools"])
async def test_both_ways_give_equal_pieces_of_text(folder: Path, seed: int, kind: str) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% if tools %}{{ tools }}<tool_call>{% endif %}" + config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assets, random = load_assets(folder, "tiny", tool_format="hermes"), Random(seed)
    body, path = (COMPLETION, "/v1/completions") if kind == "completion" else (CHAT, "/v1/chat/completions")
    body = body | ({"tools": [TOOL]} if kind == "tools" else {"stop": random.choice([[], ["STOP"], ["rds", "ig"]])})
    marks = [b"<tool_call>", b'<tool_call>{"name": "look", "arguments": {}}</tool_call>', b"STO", b"<"]
    messages = list[list[int]]()
    for _ in range(60):
        some = [random.choice(BYTES) for _ in range(random.choice([1, 1, 1, 4]))]
        messages.append(some if random.random() < 0.9 else [*random.choice(marks)])
    short = await stream_of(assets, body, path, messages, pauses=seed % 3 > 0)
    long = await stream_of(assets, body | LONG_WAY, path, messages, pauses=seed % 3 > 0)
    assert short[0] == long[0]
    assert long[2] == 0, "negative control: the long way lets tokens wait"
    if seed % 3:
        assert short[2] > 5


async def test_the_usage_at_the_end_counts_tokens_of_both_ways(assets: Assets) -> None:
    body = COMPLETION | {"stream_options": {"include_usage": True}}
    _, chunks, at_once = await stream_of(assets, body, "/v1/completions", [[97]] * 30)
    (usage,) = [json.loads(chunk.removeprefix(b"data: "))["usage"] for chunk in chunks if b'"usage":' in chunk]
    assert usage["completion_tokens"] == 31 and at_once == 29


async def test_an_unread_stream_of_plain_tokens_pauses_and_loses_nothing(assets: Assets) -> None:
    core = EmittingCore(mesh=mesh(reader_bytes=16 * 1024, model="tiny"))
    async with served_api(core, assets) as address:
        connection = await send_request(address, COMPLETION)
        await within(20, lambda: core.requests)
        (request,) = core.requests
        while request.phase is RequestPhase.OPEN:
            core.emit(4)
            await asyncio.sleep(0.0005)
        assert request.phase is RequestPhase.PAUSED
        reading = asyncio.ensure_future(read_chunks(connection))
        await within(20, lambda: request.phase is RequestPhase.OPEN)
        for _ in range(50):
            core.emit()
            await asyncio.sleep(0)
        core.mesh.sequencer.end(request, Unavailable("enough"))
        chunks = await reading
        connection.close()
    text = "".join(texts_of(chunks))
    assert len(text) == request.next_position > 100
    assert text == "".join(chr(97 + position % 26) for position in range(len(text)))


async def test_a_defect_on_the_short_way_ends_its_own_answer_only(caplog: pytest.LogCaptureFixture) -> None:
    broken, whole = mesh(), mesh()
    found = list[Token | BatonError]()

    async def read(stream: RequestStream) -> None:
        try:
            async for token in stream.events():
                found.append(token)
        except BatonError as error:
            found.append(error)

    def fail(token: int) -> bool:
        raise ValueError("a defect")

    for each, take in ((broken, fail), (whole, lambda token: False)):
        request = each.accept()
        stream = RequestStream(each.sequencer, request)
        reading = asyncio.ensure_future(read(stream))
        each.token(each.serving(request)[1], request.ticket, 0)
        await settle()
        stream.shorten(take)
        each.token(each.serving(request)[1], request.ticket, 1)
        each.token(each.serving(request)[1], request.ticket, 2, End.LENGTH)
        await reading
    assert [type(each).__name__ for each in found] == ["Token", "Internal", "Token", "Token", "Token"]
    assert "a defect" in caplog.text


async def test_ended_requests_do_not_pile_up() -> None:
    """No token comes any more for a request that the gateway has ended."""
    made = mesh()
    for _ in range(400):
        request = made.accept()
        assert request.ticket is not None
        columns = PackedTokens([request.ticket.pack()], [0], [97], [-0.5], [End.NONE])
        made.sequencer.on_tokens(made.workers[made.serving(request)[1]], columns)
        made.sequencer.end(request, Cancelled("the client went away"))
    del request
    gc.collect()
    assert sum(isinstance(each, GatewayRequest) for each in gc.get_objects()) < 100
