"""Requests of baton.inference.v1 as `ClientRequest`. An absent field stays None; gateway/validation.py fills in
defaults.

Step 1 of a request's life over gRPC."""

from dataclasses import replace
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.conversation import CHAT_FIELDS, parse_conversation
from gateway.observability.record import RequestRecord
from gateway.text.assets import Assets
from gateway.text.prompt import encode_chat, encode_text
from gateway.text.tool_calls import PLAIN, AnswerFormat
from gateway.validation import ClientRequest
from mesh.errors import InvalidRequest

_FINGERPRINT = " fingerprint "
_FIELD_NAMES = {
    **{name: f"sampling.{name}" for name in ("temperature", "top_p", "top_k", "min_p", "seed", "n")},
    "max_tokens": "stop.max_tokens",
    "min_tokens": "stop.min_tokens",
    "stop": "stop.strings",
    "stop_token_ids": "stop.token_ids",
    "top_logprobs": "logprobs.top",
    "salt": "cache_salt",
}


async def parse_request(
    request: pb.GenerateRequest,
    assets: Assets,
    *,
    request_id: str,
    trace: RequestRecord,
    deadline_seconds: float | None,
) -> ClientRequest:
    sampling, stop = request.sampling, request.stop
    prompt_field, ids, reading = await _prompt(request, assets)
    return ClientRequest(
        request_id=request_id,
        prompt=ids,
        model=request.model or None,
        n=_present(sampling, "n"),
        temperature=_present(sampling, "temperature"),
        top_p=_present(sampling, "top_p"),
        top_k=_present(sampling, "top_k"),
        min_p=_present(sampling, "min_p"),
        seed=_present(sampling, "seed"),
        max_tokens=_present(stop, "max_tokens"),
        min_tokens=_present(stop, "min_tokens"),
        stop=tuple(stop.strings),
        stop_token_ids=tuple(stop.token_ids),
        ignore_eos=stop.ignore_eos,
        include_stop=stop.include_stop_string,
        top_logprobs=request.logprobs.top if request.HasField("logprobs") else None,
        reading=replace(reading, reasoning=None),  # this API has no field for it: it stays text
        emitted={choice.index: tuple(choice.token_ids) for choice in request.emitted},
        numerics=numerics_of(request.numerics_class) if request.HasField("numerics_class") else "",
        numerics_of={
            choice.index: numerics_of(choice.numerics_class)
            for choice in request.emitted
            if choice.HasField("numerics_class")
        },
        allow_class_change=request.allow_class_change,
        salt=request.cache_salt,
        priority=request.priority,
        deadline_seconds=deadline_seconds,
        trace=trace,
        field_names={**_FIELD_NAMES, "prompt": prompt_field},
    )


def class_of(numerics: str) -> pb.NumericsClass:
    name, _, fingerprint = numerics.rpartition(_FINGERPRINT)
    return pb.NumericsClass(name=name, fingerprint=fingerprint)


def numerics_of(numerics_class: pb.NumericsClass) -> str:
    return f"{numerics_class.name}{_FINGERPRINT}{numerics_class.fingerprint}"


async def _prompt(request: pb.GenerateRequest, assets: Assets) -> tuple[str, tuple[int, ...], AnswerFormat]:
    """The field that holds the prompt, its token ids, and how the answer is to be read."""
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return "text", await encode_text(assets, request.text, field="text", special=True), PLAIN
    if kind == "token_ids":
        return "token_ids", tuple(request.token_ids.ids), PLAIN
    if kind == "chat":
        return CHAT_FIELDS.messages, *await encode_chat(assets, parse_conversation(request.chat), CHAT_FIELDS)
    raise InvalidRequest("prompt", "prompt is missing: set one of text, token_ids, chat")


def _present(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
