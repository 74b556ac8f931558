"""The answers of the OpenAI API as msgspec types: whole answers are built of them, and /openapi.json describes them.

Events of a stream are rendered by hand (gateway/dialects/common/sse.py), and their types exist for the description.
tests/unit/gateway/dialects/reference/test_described_answers.py holds events and types together: an event that has a
member more or less than its type fails there."""

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from gateway.dialects.described.receipts import SignedReceipt

FinishReason = Literal["stop", "length", "tool_calls"]
Loose = UnsetType  # the type of a member that is left out


class CachedTokens(Struct):
    cached_tokens: int


class CompletionDetails(Struct):
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class AnswerUsage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionDetails


class AnswerTimings(Struct, kw_only=True):
    """Seconds of the slowest choice; what was not measured is left out."""

    queue_seconds: float | Loose = UNSET
    prefill_seconds: float | Loose = UNSET
    first_token_seconds: float | Loose = UNSET
    handoff_seconds: float | Loose = UNSET
    decode_seconds: float | Loose = UNSET
    total_seconds: float | Loose = UNSET
    decode_steps: int | Loose = UNSET
    tokens_per_step: float | Loose = UNSET


class PromptToken(Struct):
    """One token at a position of the prompt; they are listed by their ids."""

    logprob: float
    rank: int
    decoded_token: str


class LikelyToken(Struct):
    token: str
    logprob: float
    bytes: tuple[int, ...]


class ChatToken(Struct):
    token: str
    logprob: float
    bytes: tuple[int, ...]
    top_logprobs: list[LikelyToken]


class ChatLogprobs(Struct):
    content: list[ChatToken]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Four lists with one entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CalledFunction(Struct):
    name: str
    arguments: str


class CalledTool(Struct):
    id: str
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    reasoning: str | Loose = UNSET
    reasoning_content: str | Loose = UNSET
    tool_calls: list[CalledTool] | Loose = UNSET


class ChatAnswerChoice(Struct, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | Loose = UNSET


class ChatAnswer(Struct, kw_only=True):
    """The answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatAnswerChoice]
    usage: AnswerUsage
    timings: AnswerTimings
    system_fingerprint: str
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET
    prompt_token_ids: Sequence[int] | Loose = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | Loose = UNSET


class CompletionAnswerChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: int | str | None
    token_ids: list[int] | Loose = UNSET
    prompt_token_ids: Sequence[int] | Loose = UNSET
    prompt_logprobs: list[dict[str, PromptToken] | None] | Loose = UNSET


class CompletionAnswer(Struct, kw_only=True):
    """The text that follows each prompt."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionAnswerChoice]
    usage: AnswerUsage
    timings: AnswerTimings
    system_fingerprint: str
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET


class FunctionPiece(Struct, kw_only=True):
    name: str | Loose = UNSET
    arguments: str


class ToolPiece(Struct, kw_only=True):
    """A call or the next piece of its arguments; the first piece has its id and name."""

    index: int
    id: str | Loose = UNSET
    type: Literal["function"] | Loose = UNSET
    function: FunctionPiece


class ChatDelta(Struct, kw_only=True):
    role: Literal["assistant"] | Loose = UNSET
    content: str | Loose = UNSET
    reasoning: str | Loose = UNSET
    reasoning_content: str | Loose = UNSET
    tool_calls: list[ToolPiece] | Loose = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | Loose | None = UNSET
    token_ids: list[int] | Loose = UNSET


class ChatChunk(Struct, kw_only=True):
    """The data of an event of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: AnswerUsage | Loose = UNSET
    timings: AnswerTimings | Loose = UNSET
    system_fingerprint: str | Loose = UNSET
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET
    prompt_token_ids: Sequence[int] | Loose = UNSET


class CompletionChunkChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | Loose | None = UNSET
    token_ids: list[int] | Loose = UNSET
    prompt_token_ids: Sequence[int] | Loose = UNSET


class CompletionChunk(Struct, kw_only=True):
    """The data of an event of a streamed completion."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: AnswerUsage | Loose = UNSET
    timings: AnswerTimings | Loose = UNSET
    system_fingerprint: str | Loose = UNSET
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET


class EmbeddedInput(Struct):
    object: Literal["embedding"]
    index: int
    embedding: tuple[float, ...] | str  # text: base64 of floats of 4 bytes, little endian


class EmbeddingUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class EmbeddingAnswer(Struct):
    id: str
    object: Literal["list"]
    data: list[EmbeddedInput]
    model: str
    usage: EmbeddingUsage
    system_fingerprint: str


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str
    param: str | None  # the wrong field
    code: int | str
    reason: str
    details: dict[str, str] | Loose = UNSET


class ErrorAnswer(Struct):
    """An error, as a whole answer or as the data of an event in mid-stream."""

    error: ErrorDetail
