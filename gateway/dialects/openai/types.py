"""Request bodies of the OpenAI API as msgspec types: the supported fields with their types, without defaults.

gateway/dialects/openai/body.py decides on fields that are not listed here; gateway/dialects/openai/answer.py builds
answers."""

from typing import Any

import msgspec

Json = dict[str, Any]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis, which the gateway never adds
    continuous_usage_stats: bool | None = None


class NumericsFields(msgspec.Struct, forbid_unknown_fields=True):
    """A numerics class, as receipts spell it."""

    name: str
    fingerprint: str


class SamplingFields(msgspec.Struct):
    """How tokens are drawn and where an answer ends: the same in all APIs that the gateway speaks."""

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
    thinking_token_budget: int | None = None


class CommonRequest(SamplingFields):
    """Fields of both endpoints."""

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    allow_class_change: bool | None = None
    numerics_class: NumericsFields | None = None
    receipt: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    prompt_cache_key: str | None = None
    session_id: str | None = None
    response_format: Json | None = None
    structured_outputs: Json | None = None


class CompletionRequest(CommonRequest):
    prompt: str | list[str | int | list[int]] | None = None  # entries of a list are of one kind
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None  # the text behind the gap that the model fills in


class ChatRequest(CommonRequest):
    messages: list[Json] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: Json | None = None
    add_generation_prompt: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    chat_template: str | None = None
    documents: list[Json] | None = None
    tools: list[Json] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None


class EmbeddingRequest(msgspec.Struct):
    input: str | list[str | int | list[int]] | None = None  # entries of a list are of one kind
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    messages: list[Json] | None = None  # a chat that is embedded in place of `input`
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
