"""The body of `POST /v1/responses` as a msgspec type: its own fields, and those that all chats share.

gateway/dialects/openai/body.py decides on fields that are not listed here, gateway/dialects/responses/request.py on the
listed ones."""

from typing import Any

import msgspec

from gateway.dialects.translation.options import ChatOptions

Json = dict[str, Any]


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # padding against traffic analysis, which the gateway never adds


class ResponsesRequest(ChatOptions):
    input: str | list[Json] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    stop: str | list[str] | None = None
    text: Json | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    reasoning: Json | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    metadata: dict[str, str] | None = None
    stream_options: ResponseStreamOptions | None = None
    # Fields with one value that can be honoured.
    store: bool | None = None
    background: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: str | Json | None = None
    prompt: Json | None = None
    context_management: list[Json] | None = None
    moderation: Json | None = None
    # Fields that change nothing here.
    max_tool_calls: int | None = None
    prompt_cache_options: Json | None = None
