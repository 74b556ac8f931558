"""The answers of the other dialects as msgspec types: whole answers are built of them, /openapi.json describes them.

Those of events exist for the description alone, like those of gateway/dialects/described/answers.py."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.described.answers import AnswerTimings, AnswerUsage, PromptToken
from gateway.dialects.described.receipts import SignedReceipt

Triple = tuple[float | None, int, str | None]  # logprob, token id, text


class TokenizeAnswer(Struct):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Struct):
    prompt: str


class TokenizerInfo(Struct, kw_only=True):
    """The content of tokenizer_config.json; more members depend on the model."""

    tokenizer_class: str
    eos_token: str | UnsetType = UNSET
    bos_token: str | UnsetType = UNSET
    chat_template: str | UnsetType = UNSET


class CandidateToken(Struct, kw_only=True):
    token: str
    logprob: float
    token_id: int | UnsetType = UNSET  # this and the rank: with output_mode tokens
    rank: int | UnsetType | None = UNSET  # null: it is not among the likeliest that were asked for
    bytes: list[int] | UnsetType = UNSET  # with output_mode text


class NumberedToken(CandidateToken, kw_only=True):
    top_logprobs: list[CandidateToken]


class NumberedLogprobs(Struct):
    content: list[NumberedToken]


class TokenAnswerChoice(Struct, kw_only=True):
    index: int
    token_ids: list[int]
    logprobs: NumberedLogprobs | None
    finish_reason: Literal["stop", "length"] | None  # null: the choice goes on
    stop_reason: int | str | UnsetType | None = UNSET
    text: str | UnsetType = UNSET


class TokenAnswer(Struct, kw_only=True):
    """Token ids that follow the prompt."""

    request_id: str
    output_mode: Literal["tokens", "text"]
    model: str
    created: int
    choices: list[TokenAnswerChoice]
    usage: AnswerUsage
    timings: AnswerTimings
    system_fingerprint: str
    prompt_logprobs: list[dict[str, PromptToken] | None] | None
    prompt_token_ids: Sequence[int] | UnsetType = UNSET
    receipt: SignedReceipt | UnsetType = UNSET
    receipt_salt: str | UnsetType = UNSET


class TokenChunk(Struct, kw_only=True):
    """The data of an event of a streamed answer: new token ids."""

    request_id: str
    output_mode: Literal["tokens", "text"]
    choices: list[TokenAnswerChoice]
    usage: AnswerUsage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    receipt: SignedReceipt | UnsetType = UNSET
    receipt_salt: str | UnsetType = UNSET


class SglangEnd(Struct, kw_only=True):
    type: Literal["stop", "length"]
    matched: int | str | UnsetType | None = UNSET  # the stop id or string
    length: int | UnsetType = UNSET


class SglangMeta(Struct, kw_only=True):
    id: str
    finish_reason: SglangEnd | None  # null: the answer goes on
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: float | UnsetType = UNSET
    input_token_logprobs: list[Triple] | UnsetType = UNSET
    input_top_logprobs: list[list[Triple] | None] | UnsetType = UNSET
    output_token_logprobs: list[Triple] | UnsetType = UNSET
    output_top_logprobs: list[list[Triple]] | UnsetType = UNSET
    receipt: SignedReceipt | UnsetType = UNSET  # one for all answers of the request, in the answer that ends last
    receipt_salt: str | UnsetType = UNSET


class SglangAnswer(Struct, kw_only=True):
    """One answer as a whole, or so far in an event of a stream; `index` counts the answers of a batch."""

    text: str
    output_ids: list[int]
    meta_info: SglangMeta
    index: int | UnsetType = UNSET
