"""Hostile messages over gRPC are refused soon, by name, and never stop the event loop."""

import asyncio
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.wire import MOST_FIELDS, is_heavy
from mesh.network.grpc_network import GrpcListening
from tests.harness.longest_pass import best_of
from tests.harness.waiting import within
from tests.unit.gateway.public_grpc import ask, details_of, serve

METHOD = "/baton.inference.v1.InferenceService/Generate"
MIB = 2**20
LONGEST_BLOCK_SECONDS = 0.05


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """How long the event loop stood still, each time, in seconds of this process's own computing: what other processes
    of the machine take meanwhile does not count."""
    blocks: list[float] = []

    async def watch() -> None:
        while True:
            before = time.process_time()
            await asyncio.sleep(0.001)
            blocks.append(time.process_time() - before)

    task = asyncio.create_task(watch())
    yield blocks
    task.cancel()


def field(number: int, payload: bytes) -> bytes:
    length, size = len(payload), bytearray()
    while length > 0x7F:
        size.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes((number << 3 | 2, *size, length)) + payload


# Messages of 4 MiB, each made of what costs the parser or the conversion most.
HEAVY = {
    "ids of one byte": field(4, field(1, b"\x01" * (4 * MIB - 64))),
    "empty messages": field(5, field(1, b"") * (2 * MIB - 64)),
    "calls of one message": field(5, field(1, field(4, b"") * (2 * MIB - 64))),
    "choices to continue": field(9, b"") * (2 * MIB - 64),
    "stop strings": field(7, field(3, b"") * (2 * MIB - 64)),
    "unknown fields": b"\xf8\x07\x01" * (MIB + MIB // 4),
}
# Messages that the parser takes, but whose conversion would take long.
LONG = {
    "ids": (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[70_000] * 1_300_000)), "token_ids"),
    "messages": (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * 49_000)), "chat.messages"),
    "tools": (pb.GenerateRequest(chat=pb.Chat(tools=[pb.Tool()] * 49_000)), "chat.tools"),
    "json": (pb.GenerateRequest(chat=pb.Chat(template_arguments_json="[" * MIB)), "chat.template_arguments_json"),
    "emitted": (ask(emitted=[pb.Emitted(index=0, token_ids=[70_000] * MIB)]), "emitted[0].token_ids"),
    "choices": (ask(emitted=[pb.Emitted(index=number) for number in range(24_000)]), "emitted"),
    "stop ids": (ask(stop=pb.StopOptions(token_ids=[1] * 300_000)), "stop.token_ids"),
    "text": (pb.GenerateRequest(text="a" * (4 * MIB - 64)), "text"),
}


@pytest.fixture
async def raw(channel: grpc.aio.Channel) -> Any:
    call: Any = channel.unary_unary(METHOD)
    await call(ask(stop=pb.StopOptions(max_tokens=1)).SerializeToString())  # the connection is there
    return call


async def refusal(call: Any, message: bytes) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call(message, timeout=60)
    return refused.value


async def refused_soon(call: Any, message: bytes) -> grpc.aio.AioRpcError:
    async def attempt() -> tuple[grpc.aio.AioRpcError, float]:
        async with watched() as blocks:
            error = await refusal(call, message)
        return error, max(blocks)

    return await best_of(attempt, LONGEST_BLOCK_SECONDS)


@pytest.mark.parametrize("name", HEAVY)
async def test_a_message_of_too_many_fields_is_refused_before_it_is_parsed(raw: Any, core: Any, name: str) -> None:
    assert len(HEAVY[name]) <= 4 * MIB
    error = await refused_soon(raw, HEAVY[name])
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"more than {MOST_FIELDS} fields" in str(error.details())
    details = details_of(error)
    assert details["ErrorInfo"].reason == details["QuotaFailure"].violations[0].subject == "BODY_TOO_LARGE"


@pytest.mark.parametrize("name", LONG)
async def test_a_long_list_is_counted_before_it_is_converted(raw: Any, core: Any, name: str) -> None:
    request, where = LONG[name]
    error = await refused_soon(raw, request.SerializeToString())
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details_of(error)["BadRequest"].field_violations
    assert violation.field == where


async def test_a_message_beyond_the_limit_is_refused_unread(raw: Any) -> None:
    """40 million token ids. The client of this test lives in the same loop, so only the server's share is measured by
    what the process holds at most: the message once, as the client sends it, and never a second time parsed."""
    message = field(4, field(1, b"\xf0\xa2\x04" * 40_000_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = await refusal(raw, message)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "4194304" in str(error.details())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 * 1024  # KiB; parsed it took 1.4 GB


@pytest.mark.parametrize(
    "garbage", [b"\xff", b"\x1a\x05ab", bytes(range(256)), field(3, b"\xff\xfe"), b"\xff" * 150_000]
)
@pytest.mark.parametrize("method", ["Generate", "CountTokens", "Tokenize", "Detokenize"])
async def test_bytes_that_are_no_message_are_an_invalid_argument_without_a_traceback(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture, garbage: bytes, method: str
) -> None:
    call: Any = channel.unary_unary(f"/baton.inference.v1.InferenceService/{method}")
    if method == "Detokenize" and garbage == field(3, b"\xff\xfe"):
        garbage = field(1, b"\xff\xfe")
    error = await refusal(call, garbage)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "are no baton.inference.v1." in str(error.details())
    assert caplog.records == []


async def test_messages_that_people_send_are_not_heavy() -> None:
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x" * 4000)] * 1000)
    for request in (
        pb.GenerateRequest(chat=chat),
        pb.GenerateRequest(token_ids=pb.TokenIds(ids=[100_000] * 1_000_000)),
        pb.GenerateRequest(text="漢" * 1_300_000),
    ):
        assert not await is_heavy(request.SerializeToString(), request.DESCRIPTOR)


async def test_a_limit_that_is_set_is_kept_and_named(core: Any, assets: Any) -> None:
    server: GrpcListening = await serve(core, assets, grpc_message_bytes=2048)
    async with grpc.aio.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary(METHOD)
        await call(pb.GenerateRequest(text="x" * 500).SerializeToString())
        error = await refusal(call, pb.GenerateRequest(text="x" * 3000).SerializeToString())
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "2048" in str(error.details())
    await server.close()


async def test_calls_beyond_the_streams_of_a_connection_wait_for_their_turn(core: Any, assets: Any) -> None:
    core.ends = False
    server = await serve(core, assets, grpc_streams=2)
    async with grpc.aio.insecure_channel(server.address) as channel:
        calls: list[Any] = [channel.unary_unary(METHOD)(ask().SerializeToString()) for _ in range(2)]
        await within(20, lambda: len(core.streams) == 2)
        calls.append(channel.unary_unary(METHOD)(ask().SerializeToString()))  # this one waits
        try:
            await asyncio.sleep(0.1)
            assert len(core.streams) == 2
            calls[0].cancel()
            await within(20, lambda: len(core.streams) == 3)
        finally:
            for call in calls:
                call.cancel()
            await server.close()
