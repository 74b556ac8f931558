"""The bodies of Ollama's API as msgspec types; gateway/dialects/ollama/request.py reads them.

A field that allows nothing but null would change the answer and is not supported."""

from typing import Any

import msgspec

Json = dict[str, Any]


class OllamaShared(msgspec.Struct):
    """Fields of both endpoints that generate."""

    model: str | None = None
    stream: bool | None = None  # null: true, as in Ollama
    format: str | Json | None = None
    options: Json | None = None
    think: bool | str | None = None
    keep_alive: str | float | None = None  # models stay loaded
    request_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None


class OllamaChatRequest(OllamaShared):
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaGenerateRequest(OllamaShared):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None
    images: list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class OllamaEmbedRequest(msgspec.Struct):
    model: str | None = None
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: int | None = None
    options: Json | None = None
    keep_alive: str | float | None = None
    request_id: str | None = None


class OllamaShowRequest(msgspec.Struct):
    model: str | None = None
    name: str | None = None  # the name of `model` before
    verbose: bool | None = None
