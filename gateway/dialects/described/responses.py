"""The answers of `/v1/responses` as msgspec types, with the events of a stream.

Responses are built of them; those of events exist for the API's description alone, like those of
gateway/dialects/described/answers.py. A member `type` tells the types of items, contents and events apart."""

from typing import Any, Literal

from msgspec import UNSET, Struct

from gateway.dialects.described.answers import AnswerTimings, CachedTokens, ChatToken, Loose
from gateway.dialects.described.receipts import SignedReceipt

Json = dict[str, Any]
ErrorCode = Literal["invalid_prompt", "rate_limit_exceeded", "server_error"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(Struct, tag="output_text", kw_only=True):
    text: str
    annotations: list[Json]
    logprobs: list[ChatToken]


class ReasoningText(Struct, tag="reasoning_text", kw_only=True):
    text: str


class MessageItem(Struct, tag="message", kw_only=True):
    id: str
    role: Literal["assistant"]
    content: list[OutputText]
    status: ItemStatus


class ReasoningItem(Struct, tag="reasoning", kw_only=True):
    id: str
    summary: list[Json]
    content: list[ReasoningText]
    status: ItemStatus


class CallItem(Struct, tag="function_call", kw_only=True):
    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


OutputItem = MessageItem | ReasoningItem | CallItem
OutputContent = OutputText | ReasoningText


class CachedInput(CachedTokens):
    cache_write_tokens: int


class ReasoningOutput(Struct):
    reasoning_tokens: int


class ResponseUsage(Struct):
    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: ReasoningOutput
    total_tokens: int


class ResponseError(Struct, kw_only=True):
    code: ErrorCode
    message: str
    param: str | None
    reason: str
    details: dict[str, str] | Loose = UNSET


class ResponseIncomplete(Struct):
    reason: Literal["max_output_tokens"]


class ResponseReasoning(Struct):
    effort: str | None
    summary: None


class ResponseAnswer(Struct, kw_only=True):
    """A response, also as it stands within the first and the last event of a stream."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | Loose | None = UNSET
    status: Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
    model: str
    output: list[OutputItem]
    error: ResponseError | None
    incomplete_details: ResponseIncomplete | None
    usage: ResponseUsage | None
    timings: AnswerTimings | Loose = UNSET
    system_fingerprint: str | Loose = UNSET
    background: bool
    previous_response_id: str | None
    store: bool
    temperature: float | None
    top_p: float | None
    truncation: Literal["disabled"]
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: ResponseReasoning
    text: Json
    tool_choice: str | Json
    tools: list[Json]
    top_logprobs: int
    prompt_cache_key: str | None
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET


class DeletedResponse(Struct, kw_only=True):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(Struct, kw_only=True):
    """Items before the output of a response, the newest first or the oldest first."""

    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class NumberedEvent(Struct, kw_only=True):
    sequence_number: int


class WholeResponseEvent(NumberedEvent, kw_only=True):
    response: ResponseAnswer


class ResponseCreated(WholeResponseEvent, tag="response.created"):
    pass


class ResponseInProgress(WholeResponseEvent, tag="response.in_progress"):
    pass


class ResponseCompleted(WholeResponseEvent, tag="response.completed"):
    pass


class ResponseCutShort(WholeResponseEvent, tag="response.incomplete"):
    pass


class ResponseFailed(WholeResponseEvent, tag="response.failed"):
    pass


class ItemAdded(NumberedEvent, tag="response.output_item.added", kw_only=True):
    output_index: int
    item: OutputItem


class ItemDone(NumberedEvent, tag="response.output_item.done", kw_only=True):
    output_index: int
    item: OutputItem


class ItemEvent(NumberedEvent, kw_only=True):
    item_id: str
    output_index: int


class ContentEvent(ItemEvent, kw_only=True):
    content_index: int


class PartAdded(ContentEvent, tag="response.content_part.added", kw_only=True):
    part: OutputContent


class PartDone(ContentEvent, tag="response.content_part.done", kw_only=True):
    part: OutputContent


class OutputTextDelta(ContentEvent, tag="response.output_text.delta", kw_only=True):
    delta: str
    logprobs: list[ChatToken]


class OutputTextDone(ContentEvent, tag="response.output_text.done", kw_only=True):
    text: str
    logprobs: list[ChatToken]


class ReasoningTextDelta(ContentEvent, tag="response.reasoning_text.delta", kw_only=True):
    delta: str


class ReasoningTextDone(ContentEvent, tag="response.reasoning_text.done", kw_only=True):
    text: str


class ArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta", kw_only=True):
    delta: str


class ArgumentsDone(ItemEvent, tag="response.function_call_arguments.done", kw_only=True):
    name: str
    arguments: str


ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | ItemAdded
    | PartAdded
    | OutputTextDelta
    | ReasoningTextDelta
    | ArgumentsDelta
    | OutputTextDone
    | ReasoningTextDone
    | ArgumentsDone
    | PartDone
    | ItemDone
    | ResponseCompleted
    | ResponseCutShort
    | ResponseFailed
)
