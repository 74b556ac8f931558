"""The public gRPC API on a free port, and helpers that its tests share."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc import api as grpc_api
from mesh.grpc_network import GrpcListening, GrpcNetwork
from mesh.messages import Register

CLASS = pb.NumericsClass(name="path=fp32", fingerprint="f00d")


async def serve(core: Any, assets: Any, *, reader_seconds: float = 0.0) -> GrpcListening:
    registered: list[Register] = []
    network = GrpcNetwork(also=grpc_api.services(core, assets, random=random.Random(3), reader_seconds=reader_seconds))
    return await network.listen("127.0.0.1:0", {}, registered.append)


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def ask(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "x"} | fields))


async def events_of(stub: Any, request: pb.GenerateRequest) -> list[pb.StreamGenerateResponse]:
    return [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    for detail in status.details:
        assert isinstance(detail, any_pb2.Any)
        name = detail.type_url.rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name)()
        detail.Unpack(found[name])
    return found
