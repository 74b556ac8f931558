"""Streams over gRPC: a client that takes nothing is cut off, one that reads slowly is not."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.grpc.readers import ReaderWatch
from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from mesh.errors import BatonError, ReaderStalled
from tests.harness.waiting import within
from tests.sim.loop import virtual
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.public_grpc import ask, serve


async def numbers() -> AsyncIterator[int]:
    for number in range(5):
        yield number


@pytest.mark.parametrize(("each", "stalls"), [(0.9, False), (1.4, True)])
@virtual
async def test_a_message_that_is_not_taken_in_time_stalls_the_stream_once(each: float, stalls: bool) -> None:
    errors = list[BatonError]()
    watch = ReaderWatch(1.0, errors.append)
    async for _ in watch.over(numbers()):
        await asyncio.sleep(each)
    await asyncio.sleep(5.0)
    watch.close()
    assert [type(error) for error in errors] == [ReaderStalled] * stalls
    assert watch.stalled == stalls


@virtual
async def test_a_stream_that_waits_for_its_next_token_is_no_stalled_reader() -> None:
    async def slow() -> AsyncIterator[int]:
        for number in range(3):
            await asyncio.sleep(10.0)
            yield number

    errors = list[BatonError]()
    watch = ReaderWatch(1.0, errors.append)
    assert [number async for number in watch.over(slow())] == [0, 1, 2]
    watch.close()
    assert not errors


async def test_a_client_that_reads_nothing_is_cut_off_and_its_choices_end(assets: Assets) -> None:
    core = FakeCore(reply=b"x" * 500, limits=DoorConfig(reader_seconds=0.3))
    server = await serve(core, assets)
    request = ask(sampling=pb.SamplingOptions(n=32), logprobs=pb.LogprobOptions(top=20))
    small_window = (("grpc.http2.bdp_probe", 0),)  # else gRPC reads megabytes ahead by itself
    async with grpc.aio.insecure_channel(server.address, options=small_window) as channel:
        call = pb_grpc.InferenceServiceStub(channel).StreamGenerate(pb.StreamGenerateRequest(request=request))
        await call.read()
        await within(30, lambda: bool(core.errors))
        await within(30, lambda: all(stream.cancelled or stream.ended for stream in core.streams))
        assert core.errors == ["READER_STALLED"]
        assert any(stream.cancelled for stream in core.streams)
        call.cancel()
    await server.close()
