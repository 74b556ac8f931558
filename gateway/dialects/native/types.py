"""Request bodies of the other dialects as msgspec types: the supported fields, without defaults.

A field that allows nothing but null (by its type) or false (listed in OFF) would change the answer and is not
supported: any other value is refused by its name. Those listed in IDLE change nothing, and the answer names them in a
header."""

from typing import Any, ClassVar, Literal

import msgspec

from gateway.dialects.openai.types import Json, NumericsFields, SamplingFields, StreamOptions
from mesh.errors import InvalidRequest


class TokenizeBody(msgspec.Struct):
    """`/tokenize`: a prompt or a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Json] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: Json | None = None
    tools: list[Json] | None = None
    media_io_kwargs: None = None
    mm_processor_kwargs: None = None


class DetokenizeBody(msgspec.Struct):
    model: str | None = None
    tokens: list[int] | None = None


class LoadAdapterBody(msgspec.Struct):
    """`/v1/load_lora_adapter`."""

    lora_name: str | None = None
    lora_path: str | None = None  # a folder in PEFT's form, as the workers see it
    load_inplace: bool | None = None  # true: the name may stand for another content already
    model: str | None = None  # that it belongs to, where several are served
    base_model_name: None = None
    is_3d_lora_weight: None = None


class UnloadAdapterBody(msgspec.Struct):
    """`/v1/unload_lora_adapter`."""

    lora_name: str | None = None
    lora_int_id: None = None


class VllmSampling(SamplingFields, forbid_unknown_fields=True):
    """vLLM's SamplingParams."""

    IDLE: ClassVar[tuple[str, ...]] = (
        "flat_logprobs",
        "output_kind",
        "skip_clone",
        "spaces_between_special_tokens",
    )
    OFF: ClassVar[tuple[str, ...]] = ("skip_reading_prefix_cache",)

    n: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: Json | None = None
    detokenize: bool | None = None
    flat_logprobs: bool | None = None
    output_kind: int | str | None = None
    skip_clone: bool | None = None
    spaces_between_special_tokens: bool | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: None = None
    logits_processors: None = None
    logprob_token_ids: None = None
    repetition_detection: None = None


class TokenGenerateBody(msgspec.Struct):
    """`/inference/v1/generate`: token ids in, token ids out."""

    model: str | None = None
    request_id: str | None = None
    token_ids: list[int] | None = None
    sampling_params: VllmSampling | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    output_mode: Literal["tokens", "text"] | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    numerics_class: NumericsFields | None = None
    receipt: bool | None = None
    features: None = None
    content_parts: None = None
    reasoning_ended: Literal[True] | None = None


class SglangSampling(msgspec.Struct, forbid_unknown_fields=True):
    """SGLang's sampling_params."""

    IDLE: ClassVar[tuple[str, ...]] = ("spaces_between_special_tokens", "stream_interval")
    OFF: ClassVar[tuple[str, ...]] = ()

    n: int | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    json_schema: str | None = None
    regex: str | None = None
    structural_tag: str | None = None
    spaces_between_special_tokens: bool | None = None
    stream_interval: int | None = None
    ebnf: None = None
    stop_regex: None = None
    custom_params: None = None


class SglangBody(msgspec.Struct):
    """SGLang's `/generate`. A list of texts or of lists of ids is a batch."""

    IDLE: ClassVar[tuple[str, ...]] = ("log_metrics", "no_logs", "stream_options")
    OFF: ClassVar[tuple[str, ...]] = (
        "require_reasoning",
        "return_hidden_states",
        "return_routed_experts",
        "return_indexer_topk",
        "return_sampling_mask",
        "return_entropy",
        "return_prompt_token_ids",
        "return_flat_raw_top_logprobs",
    )

    model: str | None = None
    rid: str | None = None
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None  # entries are of one kind
    sampling_params: SglangSampling | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None
    session_id: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    numerics_class: NumericsFields | None = None
    receipt: bool | None = None
    log_metrics: bool | None = None
    no_logs: bool | None = None
    stream_options: StreamOptions | None = None
    lora_path: str | None = None  # name of an adapter; empty: the model alone
    input_embeds: None = None
    image_data: None = None
    audio_data: None = None
    video_data: None = None
    token_ids_logprob: None = None
    session_params: None = None
    custom_logit_processor: None = None
    positional_embed_overrides: None = None
    max_thinking_tokens: int | None = None
    require_reasoning: bool | None = None
    return_hidden_states: bool | None = None
    return_routed_experts: bool | None = None
    return_indexer_topk: bool | None = None
    return_sampling_mask: bool | None = None
    return_entropy: bool | None = None
    return_prompt_token_ids: bool | None = None
    return_flat_raw_top_logprobs: bool | None = None


def check_off(body: Any, path: str = "") -> None:
    """Raises where the client asks for a thing that is not supported."""
    for name in body.OFF:
        if getattr(body, name):
            raise InvalidRequest(path + name, f"{path}{name} is not supported: leave it out")


def idle_fields(body: Any, path: str = "") -> list[str]:
    """Names of the fields that the client has set and that change nothing."""
    return [path + name for name in body.IDLE if getattr(body, name) is not None]
