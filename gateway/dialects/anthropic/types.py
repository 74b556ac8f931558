"""The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens` as msgspec types.

gateway/dialects/openai/body.py decides on fields that are not listed here, gateway/dialects/anthropic/request.py on the
listed ones. Both types name the fields of a prompt, because one msgspec type has one base."""

from typing import Any

import msgspec

from gateway.dialects.translation.options import ChatOptions

Json = dict[str, Any]


class MessagesRequest(ChatOptions):
    messages: list[Json] | None = None
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    output_format: Json | None = None  # the name before output_config.format
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    # Fields with one value that can be honoured.
    context_management: Json | None = None
    container: str | Json | None = None
    mcp_servers: list[Json] | None = None
    thread: Json | None = None
    compaction: Json | None = None
    # Fields that change nothing here.
    cache_control: Json | None = None
    inference_geo: str | None = None


class MessagesCountRequest(msgspec.Struct):
    model: str | None = None
    messages: list[Json] | None = None
    system: str | list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: Json | None = None
    thinking: Json | None = None
    output_config: Json | None = None
    output_format: Json | None = None
    context_management: Json | None = None
    mcp_servers: list[Json] | None = None
    thread: Json | None = None
    compaction: Json | None = None
    cache_control: Json | None = None
    parallel_tool_calls: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    request_id: str | None = None
