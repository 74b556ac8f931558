"""Sends one request over the public gRPC API and yields its events; `chat`, `generate` and `demo` share it."""

from collections.abc import AsyncIterator, Sequence
from typing import cast

import grpc
from google.rpc import error_details_pb2  # type: ignore[import-untyped]
from grpc_status import rpc_status

from baton.inference.v1 import inference_pb2, inference_pb2_grpc
from cli.connecting.api_key import api_key_headers
from cli.connecting.health import speaks_http
from cli.errors import MeshError
from mesh.network.tls import TlsFiles, open_channel
from mesh.network.tls_advice import advice

Message = tuple[str, str]  # role, content


def sampling(
    request: inference_pb2.GenerateRequest, *, max_tokens: int, temperature: float | None, seed: int | None
) -> inference_pb2.GenerateRequest:
    """Set the given options in the request; others keep the server's defaults."""
    request.stop.max_tokens = max_tokens
    if temperature is not None:
        request.sampling.temperature = temperature
    if seed is not None:
        request.sampling.seed = seed
    return request


def chat_request(messages: Sequence[Message]) -> inference_pb2.GenerateRequest:
    chat = inference_pb2.Chat(
        messages=[inference_pb2.ChatMessage(role=role, content=content) for role, content in messages]
    )
    return inference_pb2.GenerateRequest(chat=chat)


async def stream(
    address: str, request: inference_pb2.GenerateRequest, tls: TlsFiles | None = None
) -> AsyncIterator[inference_pb2.StreamGenerateResponse]:
    """Yield Started, deltas, ChoiceFinished and Finished; raise MeshError for every failure."""
    async with open_channel(address, tls) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.StreamGenerate(
            inference_pb2.StreamGenerateRequest(request=request), metadata=tuple(api_key_headers().items())
        )
        try:
            async for event in call:
                yield cast(inference_pb2.StreamGenerateResponse, event)
        except grpc.aio.AioRpcError as error:
            raise MeshError(await _explain(address, error, tls), *_field_and_reason(error)) from None


def finish_name(reason: int) -> str:
    return inference_pb2.FinishReason.Name(reason).removeprefix("FINISH_REASON_").lower()


def _field_and_reason(error: grpc.aio.AioRpcError) -> tuple[str | None, str]:
    status = rpc_status.from_call(cast(grpc.Call, error))  # it has the methods that this function calls
    field, reason = None, ""
    for detail in status.details if status is not None else ():
        wrong, info = error_details_pb2.BadRequest(), error_details_pb2.ErrorInfo()
        if detail.Unpack(wrong) and wrong.field_violations:
            field = str(wrong.field_violations[0].field)
        if detail.Unpack(info):
            reason = str(info.reason)
    return field, reason


async def _explain(address: str, error: grpc.aio.AioRpcError, tls: TlsFiles | None) -> str:
    details = error.details() or "no details"
    if error.code() is grpc.StatusCode.UNAVAILABLE and (
        what := advice(details, tls=tls is not None, name=tls.name if tls else "")
    ):
        return f"cannot talk to {address}: {what}"
    if error.code() is grpc.StatusCode.UNAVAILABLE and "connect" in details.lower():
        if await speaks_http(address):
            return (
                f"{address} speaks HTTP, not gRPC: give --grpc the gRPC address of the mesh, which `baton up` "
                "prints (127.0.0.1:50051 unless set otherwise)"
            )
        return f"no mesh answers at {address}; start one with `baton up`, or name its gRPC address with --grpc"
    return f"{error.code().name}: {details}"
