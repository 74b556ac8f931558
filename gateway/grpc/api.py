"""The public gRPC API, baton.inference.v1: the same requests as over HTTP, with tokens, classes and exact continuation.

Steps 1 and 8 of a request's life. A deadline is gRPC's own and reaches the workers; a cancelled call cancels all its
choices. Protobuf types stop here."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from gateway.answer import Answer
from gateway.client_request import validate_request_id
from gateway.core import Core
from gateway.errors import client_error
from gateway.grpc import errors as grpc_errors
from gateway.grpc.calls import Call, answered, begin, handlers
from gateway.grpc.embed import EmbedCall
from gateway.grpc.load import MeshLoad, load_trailer
from gateway.grpc.names import NAMES, Names
from gateway.grpc.reply import ReplyOptions, messages
from gateway.grpc.request import AskedRequest, parse_request
from gateway.grpc.tokens import Tokenizing
from gateway.grpc.vllm import SERVICE as VLLM
from gateway.grpc.vllm import vllm_handlers
from gateway.grpc.whole import whole
from gateway.observability.record import RequestRecord
from gateway.observability.traces import RecentTraces
from gateway.readers import ReaderWatch
from gateway.receipts.receipts import Receipts, begin_receipt
from gateway.text.by_model import ModelAssets
from gateway.turns import Turns
from gateway.usage import usage_of
from gateway.validation import validate, validate_model
from mesh import semconv
from mesh.errors import BatonError, Cancelled
from mesh.grpc_network import AddServices
from mesh.telemetry import Silent

_INFERENCE, _MODELS = (pb.DESCRIPTOR.services_by_name[name] for name in ("InferenceService", "ModelService"))
ReadRequest = Callable[[Call], Awaitable[AskedRequest]]


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


class Generating:
    """Answers a request of this API, or of an API that was turned into it."""

    def __init__(
        self,
        core: Core,
        models: ModelAssets,
        random: Random,
        traces: RecentTraces,
        load: Callable[[], MeshLoad] | None,
        receipts: Receipts | None,
    ) -> None:
        self._core, self._models, self._random, self._traces, self._load = core, models, random, traces, load
        self._receipts, self._turns = receipts, Turns()

    async def events(
        self, raw: bytes, context: Any, method: str, read: ReadRequest, names: Names = NAMES
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        """`read` makes the request of the call's message; `names` spells fields in errors as that message does."""
        call = begin(raw, context, self._random)
        about = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: method}
        trace = self._traces.begin(method, str(call.metadata.get("traceparent", "")), about)
        trace.request_id, trace.operation, done = call.request_id, semconv.TEXT_COMPLETION, False
        trace.admission = call.admission
        watch = ReaderWatch(self._core.limits.reader_seconds, self._cut_off(trace))
        try:
            asked = await read(call)
            request = asked.request
            if request.WhichOneof("prompt") == "chat":
                trace.operation = semconv.CHAT
            if given := request.request_id or call.metadata.get("x-request-id"):
                trace.request_id = call.request_id = validate_request_id(str(given))
            trace.model = validate_model(self._core, request.model)
            scored = request.stop.HasField("max_tokens") and not request.stop.max_tokens
            self._core.admit(trace.model, examined=scored)  # before the prompt is tokenized
            assets = self._models.of(trace.model)
            parsed = await parse_request(
                request,
                assets,
                call=call,
                trace=trace,
                time_left=context.time_remaining,
                context=self._core.facts(trace.model).context(assets.context_tokens),
                names=names,
                growing=asked.growing_tool_calls,
            )
            valid = validate(parsed, self._core, assets, self._random)
            owner = trace.admission.tenant
            receipt = await begin_receipt(self._receipts, request.receipt, [valid], model=trace.model, owner=owner)
            answer = await Answer.begin(valid, self._core, assets.tokenizer, self._turns)
            async with aclosing(messages(parsed, answer, ReplyOptions.of(asked), receipt)) as events:
                async for event in watch.over(events):
                    yield event
            context.set_trailing_metadata(self._trailers(call.request_id, answer))
            done, trace.attributes[semconv.RPC_STATUS] = True, grpc.StatusCode.OK.name
        except Exception as error:
            known = client_error(error, call.request_id)
            self._core.count_error(known, refused=not trace.choices)
            trace.fails(known)
            done, trace.attributes[semconv.RPC_STATUS] = not isinstance(known, Cancelled), known.grpc_status.name
            await grpc_errors.abort(context, known, call.request_id)
        finally:
            watch.close()
            trace.ends(cancelled=not (done or watch.stalled))

    def _cut_off(self, trace: RequestRecord) -> Callable[[BatonError], None]:
        """Ends the call of this task; gRPC gives its client no status, since that takes nothing."""
        call = asyncio.current_task()
        assert call is not None, "gRPC runs each call in a task"

        def cut_off(error: BatonError) -> None:
            self._core.count_error(error)
            trace.fails(error)
            call.cancel()

        return cut_off

    def _trailers(self, request_id: str, answer: Answer) -> tuple[tuple[str, str | bytes], ...]:
        name = ("x-request-id", request_id)
        return (name, load_trailer(self._load(), usage_of([answer]))) if self._load is not None else (name,)


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
        self._core, self._models, self._random = core, models, random

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
