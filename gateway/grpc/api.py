"""The public gRPC API, baton.inference.v1: the same requests as over HTTP, with tokens, classes and exact continuation.

Steps 1 and 8 of a request's life. A deadline is gRPC's own and reaches the workers; a cancelled call cancels all its
choices. Protobuf types stop here."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from gateway.core.interface import Core
from gateway.grpc.calls import Call, answered, handlers
from gateway.grpc.embed import EmbedCall
from gateway.grpc.generating import Generating, ReadRequest
from gateway.grpc.load import MeshLoad
from gateway.grpc.request import AskedRequest
from gateway.grpc.tokens import Tokenizing
from gateway.grpc.vllm import SERVICE as VLLM
from gateway.grpc.vllm import vllm_handlers
from gateway.grpc.whole import whole
from gateway.prompts.by_model import ModelAssets
from gateway.receipts.receipts import Receipts
from gateway.tracing.traces import RecentTraces
from mesh.network.grpc_network import AddServices
from mesh.telemetry.spans import Silent

_INFERENCE, _MODELS = (pb.DESCRIPTOR.services_by_name[name] for name in ("InferenceService", "ModelService"))


def services(
    core: Core,
    models: ModelAssets,
    *,
    random: Random,
    traces: RecentTraces | None = None,
    load: Callable[[], MeshLoad] | None = None,  # sent with every answer
    receipts: Receipts | None = None,
) -> AddServices:
    """Pass this to gateway/grpc/server.py to serve the public API."""

    def add(server: grpc.aio.Server) -> list[str]:
        own = traces or RecentTraces(Silent(), random=random)
        generating = Generating(core, models, random, own, load, receipts)
        inference = _Inference(
            generating, Tokenizing(core, models, random), EmbedCall(core, models, random=random, traces=own)
        )
        listing = _Models(core, models, random)
        own_services = handlers(_INFERENCE, inference), handlers(_MODELS, listing)
        server.add_generic_rpc_handlers((*own_services, vllm_handlers(generating)))
        return [_INFERENCE.full_name, _MODELS.full_name, VLLM.full_name]

    return add


class _Inference:
    def __init__(self, generating: Generating, tokenizing: Tokenizing, embed: EmbedCall) -> None:
        self._generating, self.Embed = generating, embed.answer
        self.CountTokens, self.Tokenize, self.Detokenize = tokenizing.count, tokenizing.encode, tokenizing.decode

    async def Generate(self, raw: bytes, context: Any) -> pb.GenerateResponse:
        async with aclosing(self._events(raw, context, "Generate", _read_request)) as events:
            return await whole(events)

    async def StreamGenerate(self, raw: bytes, context: Any) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        async with aclosing(self._events(raw, context, "StreamGenerate", _read_stream_request)) as events:
            async for event in events:
                yield event

    def _events(
        self, raw: bytes, context: Any, method: str, read: ReadRequest
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        return self._generating.events(raw, context, f"{_INFERENCE.full_name}/{method}", read)


class _Models:
    def __init__(self, core: Core, models: ModelAssets, random: Random) -> None:
        self._core = core
        self._models = models
        self._random = random

    async def ListModels(self, raw: bytes, context: Any) -> pb.ListModelsResponse:
        async with answered(raw, context, self._core, self._random) as call:
            await call.message(pb.ListModelsRequest)
        return pb.ListModelsResponse(models=map(self._model, self._core.models()))

    def _model(self, name: str) -> pb.Model:
        facts = self._core.facts(name)
        context_tokens = facts.context(self._models.of(name).context_tokens)
        return pb.Model(name=name, context_tokens=context_tokens, model_hash=facts.model_hash or None, root=facts.root)


async def _read_request(call: Call) -> AskedRequest:
    return AskedRequest(await call.message(pb.GenerateRequest))


async def _read_stream_request(call: Call) -> AskedRequest:
    message = await call.message(pb.StreamGenerateRequest)
    return AskedRequest(message.request, message.continuous_usage, message.growing_tool_calls)
