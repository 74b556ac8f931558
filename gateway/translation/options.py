"""Fields that mean the same in a chat completion and in the APIs that are translated into one, as a msgspec type.

The process that parses large bodies imports the types of bodies, so nothing heavy is imported here."""

from typing import Any

import msgspec


class ChatOptions(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    structured_outputs: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    request_id: str | None = None
    allow_class_change: bool | None = None
