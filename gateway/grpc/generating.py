"""Answers one request over gRPC: the streams of baton.inference.v1, and those of APIs that are turned into it.

Steps 1 and 8 of a request's life. A deadline is gRPC's own and reaches the workers; a cancelled call cancels all its
choices."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from gateway.answers.answer import Answer
from gateway.answers.usage import usage_of
from gateway.core.client_errors import client_error
from gateway.core.interface import Core
from gateway.fairness.loop_turns import Turns
from gateway.grpc import errors as grpc_errors
from gateway.grpc.calls import Call, begin
from gateway.grpc.load import MeshLoad, load_trailer
from gateway.grpc.names import NAMES, Names
from gateway.grpc.readers import ReaderWatch
from gateway.grpc.reply import ReplyOptions, messages
from gateway.grpc.request import AskedRequest, parse_request
from gateway.prompts.by_model import ModelAssets
from gateway.receipts.receipts import Receipts, begin_receipt
from gateway.tracing.record import RequestRecord
from gateway.tracing.traces import RecentTraces
from gateway.validation.client_request import validate_request_id
from gateway.validation.validate import validate, validate_model
from mesh.errors import BatonError, Cancelled
from mesh.telemetry import semconv

ReadRequest = Callable[[Call], Awaitable[AskedRequest]]


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
        self._core = core
        self._models = models
        self._random = random
        self._traces = traces
        self._load = load
        self._receipts, self._turns = receipts, Turns()

    async def events(
        self, raw: bytes, context: Any, method: str, read: ReadRequest, names: Names = NAMES
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        """`read` makes the request of the call's message; `names` spells fields in errors as that message does."""
        call = begin(raw, context, self._random)
        about = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: method}
        trace = self._traces.begin(method, str(call.metadata.get("traceparent", "")), about)
        trace.request_id = call.request_id
        trace.operation = semconv.TEXT_COMPLETION
        done = False
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
