"""Fields that mean the same in a chat completion and in the APIs that are translated into one, as a msgspec type.

The process that parses large bodies imports the types of bodies, so nothing heavy is imported here."""

from typing import Any

from gateway.dialects.openai.types import NumericsFields, SamplingFields


class ChatOptions(SamplingFields):
    model: str | None = None
    stream: bool | None = None
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
    numerics_class: NumericsFields | None = None
    receipt: bool | None = None
