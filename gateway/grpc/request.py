"""Requests of baton.inference.v1 as `ClientRequest`. An absent field stays None; gateway/validation.py fills in
defaults.

Step 1 of a request's life over gRPC. What a client can repeat is counted before it is converted, and long lists are
converted in slices, so that no request stops the event loop."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.adjustments import find_adjustments
from gateway.fields import Fields
from gateway.grpc.calls import Call
from gateway.grpc.conversation import CHAT_FIELDS, parse_conversation
from gateway.grpc.options import SAMPLING_FIELDS, adjustment_fields
from gateway.lengths import validate_length
from gateway.observability.record import RequestRecord
from gateway.structured.forms import Form, parse_structured_outputs
from gateway.text.assets import Assets
from gateway.text.prompt import encode_chat, encode_text
from gateway.text.tool_calls import PLAIN, AnswerFormat
from gateway.validation import MAX_CHOICES, ClientRequest
from mesh.errors import InvalidRequest

_FINGERPRINT = " fingerprint "
MOST_STOPS = 1024  # stop strings that are converted; gateway/validation.py has the setting's limit
_SLICE = 16_384  # ids that are converted in one piece


@dataclass(frozen=True, slots=True)
class Names:
    """How a message spells its fields, for errors."""

    text: str
    token_ids: str
    others: Mapping[str, str]  # by their names in ClientRequest


NAMES = Names(
    text="text",
    token_ids="token_ids",
    others={
        **{
            name: f"sampling.{name}"
            for name in ("temperature", "top_p", "top_k", "min_p", "seed", "n", *SAMPLING_FIELDS)
        },
        "max_tokens": "stop.max_tokens",
        "min_tokens": "stop.min_tokens",
        "stop": "stop.strings",
        "stop_token_ids": "stop.token_ids",
        "top_logprobs": "logprobs.top",
        "salt": "cache_salt",
        "affinity": "affinity_key",
    },
)


async def parse_request(
    request: pb.GenerateRequest,
    assets: Assets,
    *,
    call: Call,
    trace: RequestRecord,
    time_left: Callable[[], float | None],
    names: Names = NAMES,
) -> ClientRequest:
    sampling, stop = request.sampling, request.stop
    _limit(names.others["stop"], stop.strings, MOST_STOPS)
    _limit(names.others["stop_token_ids"], stop.token_ids, assets.vocabulary)
    has_form = request.HasField("structured_output")
    form = await assets.grammars.built(partial(_form, request, assets)) if has_form else None
    grammar = await assets.grammars.compiled(form)
    prompt_field, ids, reading = await _prompt(request, assets, names)
    return ClientRequest(
        request_id=call.request_id,
        prompt=ids,
        model=request.model or None,
        n=_present(sampling, "n"),
        best_of=_present(sampling, "best_of"),
        adjustments=await find_adjustments(adjustment_fields(sampling), Fields(names.others), assets),
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
        emitted=await _emitted(request.emitted, assets.context_tokens),
        grammar=grammar,
        numerics=numerics_of(request.numerics_class) if request.HasField("numerics_class") else "",
        numerics_of={
            choice.index: numerics_of(choice.numerics_class)
            for choice in request.emitted
            if choice.HasField("numerics_class")
        },
        allow_class_change=request.allow_class_change,
        salt=request.cache_salt,
        affinity=request.affinity_key,
        priority=request.priority,
        deadline_seconds=time_left(),  # after the prompt was tokenized, which takes some of it
        trace=trace,
        field_names={**names.others, "prompt": prompt_field, "grammar": form.field if form else "structured_output"},
    )


def _form(request: pb.GenerateRequest, assets: Assets) -> Form | None:
    """The form that the answer must have, by the rules of `structured_outputs` over HTTP."""
    form, kind = request.structured_output, request.structured_output.WhichOneof("form")
    if kind is None:
        return None
    values: dict[str, tuple[str, Any]] = {
        "json_schema": ("json", form.json_schema),
        "json_object": ("json_object", form.json_object),
        "regex": ("regex", form.regex),
        "choice": ("choice", list(form.choice.texts)),
        "grammar": ("grammar", form.grammar),
        "structural_tag": ("structural_tag", form.structural_tag),
    }
    given = dict([values[kind]])
    try:
        return parse_structured_outputs(given, assets.tokenizer.added, "structured_output")
    except InvalidRequest as error:
        field = (error.field or "").replace("structured_output.json", "structured_output.json_schema", 1)
        raise InvalidRequest(field if kind == "json_schema" else error.field, error.message) from error


def class_of(numerics: str) -> pb.NumericsClass:
    name, _, fingerprint = numerics.rpartition(_FINGERPRINT)
    return pb.NumericsClass(name=name, fingerprint=fingerprint)


def numerics_of(numerics_class: pb.NumericsClass) -> str:
    return f"{numerics_class.name}{_FINGERPRINT}{numerics_class.fingerprint}"


async def ids_of(field: str, ids: Sequence[int], most: int) -> tuple[int, ...]:
    """The ids of a repeated field; more than the context holds are refused unread."""
    if len(ids) > most:
        validate_length(field, len(ids), most)
    found: list[int] = []
    for start in range(0, len(ids), _SLICE):
        if start:
            await asyncio.sleep(0)
        found += ids[start : start + _SLICE]
    return tuple(found)


async def _prompt(
    request: pb.GenerateRequest, assets: Assets, names: Names
) -> tuple[str, tuple[int, ...], AnswerFormat]:
    """The field that holds the prompt, its token ids, and how the answer is to be read."""
    kind = request.WhichOneof("prompt")
    if kind == "text":
        return names.text, await encode_text(assets, request.text, field=names.text, special=True), PLAIN
    if kind == "token_ids":
        ids = await ids_of(names.token_ids, request.token_ids.ids, assets.context_tokens)
        return names.token_ids, ids, PLAIN
    if kind == "chat":
        return CHAT_FIELDS.messages, *await encode_message(request.chat, assets)
    raise InvalidRequest("prompt", f"prompt is missing: set one of {names.text}, {names.token_ids}, chat")


async def encode_message(chat: pb.Chat, assets: Assets) -> tuple[tuple[int, ...], AnswerFormat]:
    """Token ids of a chat, and how the answer is to be read."""
    conversation = await parse_conversation(chat, assets.context_tokens)
    return await encode_chat(assets, conversation, CHAT_FIELDS)


async def _emitted(choices: Sequence[pb.Emitted], most: int) -> dict[int, tuple[int, ...]]:
    _limit("emitted", choices, MAX_CHOICES)
    found: dict[int, tuple[int, ...]] = {}
    for place, choice in enumerate(choices):
        if choice.index in found:
            field = f"emitted[{place}].index"
            raise InvalidRequest(field, f"{field} is {choice.index}, as in an earlier entry; send each choice once")
        found[choice.index] = await ids_of(f"emitted[{place}].token_ids", choice.token_ids, most)
    return found


def _limit(field: str, values: Sequence[Any], most: int) -> None:
    if len(values) > most:
        raise InvalidRequest(field, f"{field} has {len(values)} entries; at most {most} are allowed")


def _present(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None
