"""The OpenAI API's requests as msgspec types: what is understood, with its type; nothing is defaulted here.

Fields that are not listed go through gateway/openai_fields.py first. Answers are built in gateway/openai_answer.py."""

from typing import Any

import msgspec

Json = dict[str, Any]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; there is none here
    continuous_usage_stats: bool | None = None


class Common(msgspec.Struct):
    """What both endpoints take."""

    model: str | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    allow_class_change: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None


class CompletionRequest(Common):
    prompt: str | list[str | int | list[int]] | None = None  # a list holds one kind only; openai_ask checks
    logprobs: int | None = None
    echo: bool | None = None


class ChatRequest(Common):
    messages: list[Json] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: Json | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
