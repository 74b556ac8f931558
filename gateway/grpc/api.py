"""The public gRPC API, baton.inference.v1: the same requests as over HTTP, with tokens, classes and exact continuation.

Steps 1 and 8 of a request's life. A deadline is gRPC's own and reaches the workers; a cancelled call cancels all its
choices. Protobuf types stop here."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from random import Random
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.answer import Answer, Delta, Finished
from gateway.core import Core
from gateway.errors import client_error
from gateway.grpc import errors as grpc_errors
from gateway.grpc.conversation import tool_call
from gateway.grpc.request import class_of, parse_request
from gateway.observability.record import RequestRecord
from gateway.observability.traces import RecentTraces
from gateway.readers import ReaderWatch
from gateway.text.assets import Assets
from gateway.usage import timings_of, usage_of
from gateway.validation import ClientRequest, validate, validate_model, validate_request_id
from mesh import semconv
from mesh.errors import BatonError, Cancelled
from mesh.grpc_network import AddServices
from mesh.messages import End
from mesh.telemetry import Silent

_SERVICE = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name


def services(
    core: Core,
    assets: Assets,
    *,
    random: Random,
    traces: RecentTraces | None = None,
) -> AddServices:
    """Pass this to GrpcNetwork(also=...) to serve the public API on the port where workers register."""

    def add(server: grpc.aio.Server) -> list[str]:
        own = traces or RecentTraces(Silent(), random=random)
        pb_grpc.add_InferenceServiceServicer_to_server(_Inference(core, assets, random, own), server)
        pb_grpc.add_ModelServiceServicer_to_server(_Models(core, assets), server)
        return [service.full_name for service in pb.DESCRIPTOR.services_by_name.values()]

    return add


class _Inference:
    def __init__(self, core: Core, assets: Assets, random: Random, traces: RecentTraces) -> None:
        self._core, self._assets, self._random, self._traces = core, assets, random, traces
        self._reader_seconds = core.limits.reader_seconds

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> pb.GenerateResponse:
        response = pb.GenerateResponse()
        choices: dict[int, pb.Choice] = {}
        async with aclosing(self._events(request, context, "Generate")) as events:
            async for event in events:
                kind = event.WhichOneof("event")
                if kind == "started":
                    response.started.CopyFrom(event.started)
                    response.request_id = event.started.request_id
                elif kind == "finished":
                    response.finished.CopyFrom(event.finished)
                else:
                    index = getattr(event, kind).index
                    _grow(choices.setdefault(index, pb.Choice(index=index)), event)
        response.choices.extend(choices[index] for index in sorted(choices))
        return response

    async def StreamGenerate(
        self, request: pb.StreamGenerateRequest, context: Any
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        async with aclosing(self._events(request.request, context, "StreamGenerate")) as events:
            async for event in events:
                yield event

    async def _events(
        self, request: pb.GenerateRequest, context: Any, method: str
    ) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
        metadata = dict(context.invocation_metadata() or ())
        request_id = f"{self._random.getrandbits(128):032x}"
        full, operation = f"{_SERVICE}/{method}", _operation(request)
        about = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: full}
        trace = self._traces.begin(full, metadata.get("traceparent", ""), about, operation=operation)
        trace.request_id, done = request_id, False
        watch = ReaderWatch(self._reader_seconds, self._cut_off(trace))
        try:
            if given := request.request_id or metadata.get("x-request-id"):
                trace.request_id = request_id = validate_request_id(given)
            trace.model = validate_model(self._core, request.model)
            parsed = await parse_request(
                request,
                self._assets,
                request_id=request_id,
                trace=trace,
                deadline_seconds=context.time_remaining(),
            )
            valid = validate(parsed, self._core, self._assets, self._random)
            async with aclosing(_stream(parsed, Answer(valid, self._core, self._assets.tokenizer))) as events:
                async for event in watch.over(events):
                    yield event
            done, trace.attributes[semconv.RPC_STATUS] = True, grpc.StatusCode.OK.name
        except Exception as error:
            known = client_error(error, request_id)
            self._core.count_error(known, refused=not trace.choices)
            trace.fails(known)
            done, trace.attributes[semconv.RPC_STATUS] = not isinstance(known, Cancelled), known.grpc_status.name
            await grpc_errors.abort(context, known, request_id)
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


class _Models:
    def __init__(self, core: Core, assets: Assets) -> None:
        self._core, self._assets = core, assets

    async def ListModels(self, request: pb.ListModelsRequest, context: Any) -> pb.ListModelsResponse:
        context_tokens = min(self._assets.context_tokens, self._core.context_tokens or self._assets.context_tokens)
        return pb.ListModelsResponse(
            models=[
                pb.Model(name=name, context_tokens=context_tokens, model_hash=self._core.model_hash or None)
                for name in self._core.models()
            ]
        )


def _operation(request: pb.GenerateRequest) -> str:
    return semconv.CHAT if request.WhichOneof("prompt") == "chat" else semconv.TEXT_COMPLETION


async def _stream(request: ClientRequest, answer: Answer) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
    classes: list[str] = []  # numerics classes sent so far, the class of Started first
    class_of_choice: dict[int, str] = {}
    with_logprobs = request.top_logprobs is not None
    async with aclosing(answer.events()) as events:
        async for event in events:
            if not classes:
                classes.append(answer.numerics)
                yield _started(request, answer)
            if isinstance(event, Finished):
                yield _choice_finished(event)
                continue
            before = class_of_choice.get(event.index, request.numerics_of.get(event.index, classes[0]))
            class_of_choice[event.index] = event.numerics
            if event.numerics not in classes:
                classes.append(event.numerics)
            yield _delta(event, with_logprobs, changed=event.numerics != before)
    yield _finished(answer, classes[1:])


def _started(request: ClientRequest, answer: Answer) -> pb.StreamGenerateResponse:
    started = pb.Started(
        seed=answer.seed,
        numerics_class=class_of(answer.numerics),
        request_id=request.request_id,
        prompt_tokens=answer.prompt_tokens,
    )
    return pb.StreamGenerateResponse(started=started)


def _delta(event: Delta, with_logprobs: bool, *, changed: bool) -> pb.StreamGenerateResponse:
    delta = pb.Delta(
        index=event.index,
        position=event.tokens[0].position,
        token_ids=[token.token for token in event.tokens],
        text=event.text,
        tool_calls=map(tool_call, event.calls),
    )
    if changed:
        delta.numerics_class.CopyFrom(class_of(event.numerics))
    if with_logprobs:
        for token in event.tokens:
            delta.logprobs.add(logprob=token.logprob, top_ids=token.top_ids, top_logprobs=token.top_logprobs)
    return pb.StreamGenerateResponse(delta=delta)


def _choice_finished(event: Finished) -> pb.StreamGenerateResponse:
    stopped = pb.FINISH_REASON_TOOL_CALLS if event.called else pb.FINISH_REASON_STOP
    reason = pb.FINISH_REASON_LENGTH if event.reason is End.LENGTH else stopped
    finished = pb.ChoiceFinished(index=event.index, reason=reason)
    if event.stop_id is not None:
        finished.stop_token_id = event.stop_id
    if event.stop_string is not None:
        finished.stop_string = event.stop_string
    return pb.StreamGenerateResponse(choice_finished=finished)


def _finished(answer: Answer, changed: list[str]) -> pb.StreamGenerateResponse:
    usage = usage_of([answer])
    finished = pb.Finished(
        usage=pb.Usage(prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens),
        changed_to=[class_of(numerics) for numerics in changed],
    )
    if answer.timings:  # at least one choice ran
        finished.usage.cached_tokens = usage.cached_tokens
        finished.usage.drafted_tokens, finished.usage.accepted_tokens = usage.drafted_tokens, usage.accepted_tokens
        for name, value in timings_of([answer]).items():
            setattr(finished.timings, name, value)
    return pb.StreamGenerateResponse(finished=finished)


def _grow(choice: pb.Choice, event: pb.StreamGenerateResponse) -> None:
    if event.WhichOneof("event") == "delta":
        choice.token_ids.extend(event.delta.token_ids)
        choice.text += event.delta.text
        choice.logprobs.extend(event.delta.logprobs)
        choice.tool_calls.extend(event.delta.tool_calls)
    else:
        choice.finished.CopyFrom(event.choice_finished)
