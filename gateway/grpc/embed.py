"""`InferenceService.Embed`: embeddings over gRPC. Deadline and cancel are gRPC's own, as for tokens."""

import asyncio
import struct
from random import Random
from typing import Any

import grpc

from baton.inference.v1 import inference_pb2 as pb
from gateway.answers.embedding import Embeddings, EmbedRequest, check_count, validate_embed
from gateway.core.client_errors import client_error
from gateway.core.interface import Core
from gateway.grpc import errors as grpc_errors
from gateway.grpc.calls import begin
from gateway.grpc.request import class_of
from gateway.prompts.assets import Assets
from gateway.prompts.by_model import ModelAssets
from gateway.prompts.prompt import encode_text
from gateway.tracing.traces import RecentTraces
from gateway.validation.client_request import validate_request_id
from gateway.validation.validate import validate_model
from mesh.errors import InvalidRequest
from mesh.telemetry import semconv

_METHOD = f"{pb.DESCRIPTOR.services_by_name['InferenceService'].full_name}/Embed"


class EmbedCall:
    """The method, as the service's class calls it."""

    def __init__(self, core: Core, models: ModelAssets, *, random: Random, traces: RecentTraces) -> None:
        self._core = core
        self._models = models
        self._random = random
        self._traces = traces

    async def answer(self, raw: bytes, context: Any) -> pb.EmbedResponse:
        call = begin(raw, context, self._random)
        about = {semconv.RPC_SYSTEM: "grpc", semconv.RPC_METHOD: _METHOD}
        trace = self._traces.begin(
            _METHOD, str(call.metadata.get("traceparent", "")), about, operation=semconv.EMBEDDINGS
        )
        trace.request_id = call.request_id
        trace.admission = call.admission
        done = False
        try:
            request = await call.message(pb.EmbedRequest)
            if given := request.request_id or call.metadata.get("x-request-id"):
                trace.request_id = call.request_id = validate_request_id(str(given))
            trace.model = validate_model(self._core, request.model)
            assets = self._models.of(trace.model)
            parsed = EmbedRequest(
                call.request_id,
                await _inputs(request, assets),
                request.model,
                request.dimensions if request.HasField("dimensions") else None,
                request.cache_salt,
                request.priority,
                context.time_remaining(),
                trace,
                field="inputs",
            )
            response = await self._response(Embeddings(self._core, validate_embed(parsed, self._core, assets)))
            response.request_id = call.request_id
            done, trace.attributes[semconv.RPC_STATUS] = True, grpc.StatusCode.OK.name
            return response
        except Exception as error:
            known = client_error(error, call.request_id)
            self._core.count_error(known, refused=not trace.choices)
            trace.fails(known)
            done, trace.attributes[semconv.RPC_STATUS] = True, known.grpc_status.name
            await grpc_errors.abort(context, known, call.request_id)
        finally:
            trace.ends(cancelled=not done)

    async def _response(self, embeddings: Embeddings) -> pb.EmbedResponse:
        response = pb.EmbedResponse()
        for values in await embeddings.values():
            response.embeddings.add(values=struct.unpack(f"<{len(values) // 4}f", values))
            await asyncio.sleep(0)  # thousands of numbers each
        response.usage.prompt_tokens = embeddings.prompt_tokens
        response.usage.cached_tokens = embeddings.cached_tokens
        response.numerics_class.CopyFrom(class_of(embeddings.numerics))
        return response


async def _inputs(request: pb.EmbedRequest, assets: Assets) -> tuple[tuple[int, ...], ...]:
    check_count("inputs", len(request.inputs))  # before anything is tokenized
    found = list[tuple[int, ...]]()
    for index, entry in enumerate(request.inputs):
        kind, field = entry.WhichOneof("input"), f"inputs[{index}]"
        if kind is None:
            raise InvalidRequest(field, f"{field} is empty: set text or token_ids")
        if kind == "text":
            found.append(await encode_text(assets, entry.text, field=f"{field}.text", special=True))
            await asyncio.sleep(0)  # others have their turn between two texts
        else:
            found.append(tuple(entry.token_ids.ids))
    return tuple(found)
