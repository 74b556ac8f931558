"""The body of `POST /v1/responses` as a chat completion.

Step 1 of a request's life over HTTP. A response may continue a stored one, whose items come first then; conversations
and prompts are not stored, and fields that name one are refused. Reasoning goes out as text, so nothing needs to be
encrypted for the next request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.dialects.responses.items import read_input
from gateway.dialects.responses.types import ResponsesRequest
from gateway.dialects.translation.chat import TranslatedChat, translated_chat
from gateway.dialects.translation.reading import Ignored, ObjectReader, ignore
from gateway.validation.ranges import MAX_TOP_LOGPROBS
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
LOGPROBS = "message.output_text.logprobs"  # the value of `include` that can be honoured
FORM = "text.format"
_STORED = "this gateway stores no conversations: send previous_response_id, or the whole conversation in input"
# Fields that are refused unless their value is null or one of these, with the reason.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "conversation": ((), _STORED),
    "prompt": ((), "this gateway stores no prompts: send instructions and input"),
    "truncation": (("disabled",), "no item is dropped from a conversation; shorten input"),
    "context_management": (([],), "no conversation is compacted here; shorten input"),
    "moderation": ((), "nothing is moderated here"),
}
_WITHOUT_EFFECT = ("max_tool_calls", "prompt_cache_options")  # no tools run here, and the cache decides by itself


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """The chat, and the fields of the request that the response repeats, encoded already where they may be long."""

    chat: TranslatedChat
    repeated: Json
    before: Sequence[Json]  # the items of the response that this one continues


def translate(body: ResponsesRequest, ignored: Ignored, before: Sequence[Json] = ()) -> AskedResponse:
    """`before`: the items of the response that this one continues."""
    for name, (neutral, why) in _REFUSED.items():
        value = getattr(body, name)
        if value is not None and value not in neutral:
            raise InvalidRequest(name, f"{name} is not supported: {why}")
    for name in _WITHOUT_EFFECT:
        if getattr(body, name) is not None:
            ignore(name, ignored)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "stream_options needs stream = true")
    transcript = read_input(body.input, body.instructions, ignored, before)
    form, effort = _form(body.text, ignored), _effort(body.reasoning, ignored)
    logprobs = _logprobs(body, ignored)
    chat = translated_chat(
        body,
        transcript,
        {
            "tools": [_tool(ObjectReader(tool, f"tools[{at}]", ignored)) for at, tool in enumerate(body.tools or ())],
            "tool_choice": body.tool_choice,
            "max_tokens": body.max_output_tokens,
            "stop": body.stop,
            "response_format": form,
            "reasoning_effort": effort,
            "logprobs": logprobs,
            "top_logprobs": body.top_logprobs if logprobs else None,
        },
        messages="input",
        parameters="parameters",
        names={"max_tokens": "max_output_tokens"},
        form=FORM,
    )
    return AskedResponse(chat, _repeated(body, effort), before)


def _repeated(body: ResponsesRequest, effort: str | None) -> Json:
    def raw(value: Any) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode(value))

    return {
        "instructions": raw(body.instructions),
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": raw(body.metadata or {}),
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "reasoning": {"effort": effort, "summary": None},
        "text": raw({"format": {"type": "text"}, **(body.text or {})}),
        "tool_choice": raw("auto" if body.tool_choice is None else body.tool_choice),
        "tools": raw([{"parameters": None, "strict": None, **tool} for tool in body.tools or ()]),
        "top_logprobs": body.top_logprobs or 0,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _form(text: Json | None, ignored: Ignored) -> Json | None:
    """`response_format`, but flat: a schema stands beside its type."""
    if text is None:
        return None
    reader = ObjectReader(text, "text", ignored)
    form = reader.any("format")
    reader.without_effect("verbosity")
    reader.done()
    if not isinstance(form, dict | None):
        raise InvalidRequest(FORM, f"{FORM} must be an object with a type")
    return form


def _effort(reasoning: Json | None, ignored: Ignored) -> str | None:
    if reasoning is None:
        return None
    reader = ObjectReader(reasoning, "reasoning", ignored)
    effort = reader.optional_text("effort")
    reader.done()  # a summary too: the reasoning itself is in the output
    return effort


def _logprobs(body: ResponsesRequest, ignored: Ignored) -> bool:
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        what = f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, not {body.top_logprobs}"
        raise InvalidRequest("top_logprobs", what)
    for value in body.include or ():
        if value != LOGPROBS:
            ignore(f"include.{value}", ignored)
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


def _tool(tool: ObjectReader) -> Json:
    """A tool as chat completions declare it."""
    kind = tool.any("type")
    if kind != "function":
        what = f"{tool.at('type')} is {brief(repr(kind))}; the tools are functions that the client runs itself"
        raise InvalidRequest(tool.at("type"), what)
    tool.refuse("defer_loading", (False,), "the model sees every tool from the beginning")
    tool.refuse("async", (False,), "a call ends the response")
    function = {name: tool.any(name) for name in ("name", "description", "parameters", "strict")}
    tool.done()
    return {"type": "function", "function": {name: value for name, value in function.items() if value is not None}}
