"""The bodies of `/api/chat` and `/api/generate` as chats or completions of the OpenAI API.

Step 1 of a request's life over HTTP. Options keep their meaning under Ollama's names, and errors name them so."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.dialects.ollama.messages import NO_IMAGES, read_messages
from gateway.dialects.ollama.types import OllamaChatRequest, OllamaGenerateRequest, OllamaShared
from gateway.dialects.openai.request import CHAT_COMPLETIONS, Spelling
from gateway.dialects.openai.types import ChatRequest, CompletionRequest
from gateway.dialects.translation.chat import translated_chat
from gateway.dialects.translation.options import ChatOptions
from gateway.dialects.translation.reading import Ignored, ObjectReader, ignore
from gateway.dialects.translation.transcript import Transcript
from gateway.prompts.prompt import SWITCHES
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
LATEST = ":latest"  # the tag of a name that has none
_WHOLE = {"top_k": "top_k", "seed": "seed", "num_predict": "max_tokens"}  # options -> fields of the OpenAI API
_NUMBERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
NAMES = {field: f"options.{name}" for name, field in (*_WHOLE.items(), *_NUMBERS.items())} | {"stop": "options.stop"}
# Options that would change the answer and are not supported, with the values that change nothing.
_NEUTRAL: dict[str, tuple[float, ...]] = {"mirostat": (0,), "tfs_z": (1,), "typical_p": (1,)}
STAND_IN = "a"  # for the text of a request that has none
_EFFORTS = ("low", "medium", "high")


@dataclass(frozen=True, slots=True)
class AskedOllama:
    spelling: Spelling = CHAT_COMPLETIONS
    text: str | None = None  # what a model without a chat template completes; None: it cannot
    loads: bool = False  # nothing is asked: the answer says that the model is loaded
    shows_thinking: bool = True


def bare_name(model: str | None) -> str | None:
    """The served name: the tag that Ollama's clients add says nothing."""
    return model.removesuffix(LATEST) if model is not None else None


def translate_chat(body: OllamaChatRequest, ignored: Ignored) -> tuple[ChatRequest, AskedOllama]:
    _check_shared(body, ignored)
    more = {"tools": body.tools} if body.tools else {}
    if not body.messages:
        return _loading(body, more, ignored)
    return _chat(body, read_messages(body.messages, ignored), more, ignored, messages="messages")


def translate_generate(
    body: OllamaGenerateRequest, ignored: Ignored
) -> tuple[ChatRequest | CompletionRequest, AskedOllama]:
    _check_shared(body, ignored)
    refused = {
        "images": NO_IMAGES,
        "context": "send the conversation to /api/chat instead",
        "template": "the model's own template is used; `raw` sends a prompt as it is",
    }
    for name, why in refused.items():
        if getattr(body, name):
            raise InvalidRequest(name, f"{name} is not supported: {why}")
    if not body.prompt:
        return _loading(body, {}, ignored)
    if body.raw or body.suffix:
        if body.system:
            what = "system goes with a template, and a prompt that is raw or has a suffix is sent without one"
            raise InvalidRequest("system", what)
        form, options = _form(body.format), _options(body, ignored)
        plain = CompletionRequest(
            prompt=body.prompt, suffix=body.suffix, response_format=form, **_common(body), **options
        )
        return plain, AskedOllama(text=body.prompt)
    transcript = Transcript()
    if body.system:
        transcript.system(body.system, "system")
    transcript.user(body.prompt, "prompt")
    chat, asked = _chat(body, transcript, {}, ignored, messages="prompt")
    text = f"{body.system}\n{body.prompt}" if body.system else body.prompt
    return chat, AskedOllama(asked.spelling, text, shows_thinking=asked.shows_thinking)


def as_completion(chat: ChatRequest, text: str) -> CompletionRequest:
    """The same request for a model that has no chat template."""
    shared = set(CompletionRequest.__struct_fields__) & set(ChatRequest.__struct_fields__) - {"logprobs"}
    return CompletionRequest(prompt=text, **{name: getattr(chat, name) for name in shared})


def _loading(body: OllamaShared, more: Mapping[str, Any], ignored: Ignored) -> tuple[ChatRequest, AskedOllama]:
    """A request without a text loads the model. A text stands in for it, so that wrong fields are refused as ever."""
    transcript = Transcript()
    transcript.user(STAND_IN, "messages")
    chat, asked = _chat(body, transcript, more, ignored, messages="messages")
    return chat, replace(asked, loads=True, text=STAND_IN)


def _chat(
    body: OllamaShared, transcript: Transcript, more: Mapping[str, Any], ignored: Ignored, *, messages: str
) -> tuple[ChatRequest, AskedOllama]:
    fields: Json = {**more, "response_format": _form(body.format), **_options(body, ignored)}
    if isinstance(body.think, bool):
        fields["chat_template_kwargs"] = dict.fromkeys(SWITCHES, body.think)
    elif body.think:
        if body.think not in _EFFORTS:
            what = f"think is {brief(repr(body.think))}; it must be true, false or {' or '.join(_EFFORTS)}"
            raise InvalidRequest("think", what)
        fields["reasoning_effort"] = body.think
    fields |= _common(body)
    made = translated_chat(
        ChatOptions(), transcript, fields, messages=messages, parameters="parameters", names=NAMES, form="format"
    )
    return made.body, AskedOllama(made.spelling, shows_thinking=body.think is not False)


def _common(body: OllamaShared) -> Json:
    return {
        "model": bare_name(body.model),
        "stream": _streams(body),
        "request_id": body.request_id,
        "priority": body.priority,
        "cache_salt": body.cache_salt,
    }


def _streams(body: OllamaShared) -> bool:
    return body.stream is not False


def _check_shared(body: OllamaChatRequest | OllamaGenerateRequest, ignored: Ignored) -> None:
    if body.keep_alive is not None:
        ignore("keep_alive", ignored)
    for name in ("logprobs", "top_logprobs"):
        if getattr(body, name):
            raise InvalidRequest(name, f"{name} is not supported here: ask /v1/chat/completions or /v1/completions")


def _options(body: OllamaShared, ignored: Ignored) -> Json:
    """The options under the names of the OpenAI API."""
    found: Json = {}
    if body.options is None:
        return found
    options = ObjectReader(body.options, "options", ignored)
    for name, field in _WHOLE.items():
        value = options.any(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidRequest(options.at(name), f"{options.at(name)} must be a whole number")
            found[field] = value
    for name, field in _NUMBERS.items():
        value = options.any(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidRequest(options.at(name), f"{options.at(name)} must be a number")
            found[field] = float(value)
    if found.get("max_tokens", 0) < 0:
        del found["max_tokens"]  # -1: until the model ends, -2: until the context is full
    stop = options.any("stop")
    if stop is not None:
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
            raise InvalidRequest(options.at("stop"), f"{options.at('stop')} must be text or a list of texts")
        found["stop"] = stops
    for name, neutral in _NEUTRAL.items():
        options.refuse(name, neutral, "the sampler has no such rule")
    options.done()
    return found


def _form(given: str | Json | None) -> Json | None:
    if given is None or given == "":
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, str):
        raise InvalidRequest("format", f'format is {brief(repr(given))}; it must be "json" or a JSON schema')
    return {"type": "json_schema", "name": "format", "schema": given}
