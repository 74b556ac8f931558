"""The answers of `/v1/messages` and `/v1/messages/count_tokens` as msgspec types, with events and errors.

Messages are built of them; those of events exist for the API's description alone, like those of
gateway/dialects/described/answers.py. A member `type` tells the types of blocks, deltas and events apart."""

from typing import Any, Literal

from msgspec import UNSET, Struct

from gateway.dialects.described.answers import Loose
from gateway.dialects.described.receipts import SignedReceipt

StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "tool_use", "stop_sequence"]
ErrorKind = Literal[
    "api_error",
    "authentication_error",
    "invalid_request_error",
    "not_found_error",
    "overloaded_error",
    "permission_error",
    "rate_limit_error",
    "request_too_large",
    "timeout_error",
]


class TextBlock(Struct, tag="text", kw_only=True):
    text: str


class ThinkingBlock(Struct, tag="thinking", kw_only=True):
    thinking: str
    signature: str


class ToolUseBlock(Struct, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: Any  # an object


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(Struct):
    thinking_tokens: int


class MessageUsage(Struct):
    input_tokens: int  # those that no cache held
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class MessageAnswer(Struct, kw_only=True):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET


class CountAnswer(Struct):
    input_tokens: int


class MessageStart(Struct, tag="message_start", kw_only=True):
    message: MessageAnswer


class MessagePing(Struct, tag="ping"):
    pass


class BlockStart(Struct, tag="content_block_start", kw_only=True):
    index: int
    content_block: AnswerBlock


class TextDelta(Struct, tag="text_delta", kw_only=True):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta", kw_only=True):
    thinking: str


class SignatureDelta(Struct, tag="signature_delta", kw_only=True):
    signature: str


class InputJsonDelta(Struct, tag="input_json_delta", kw_only=True):
    partial_json: str


class BlockDelta(Struct, tag="content_block_delta", kw_only=True):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class BlockStop(Struct, tag="content_block_stop", kw_only=True):
    index: int


class MessageEnd(Struct):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Struct, tag="message_delta", kw_only=True):
    delta: MessageEnd
    usage: MessageUsage
    receipt: SignedReceipt | Loose = UNSET
    receipt_salt: str | Loose = UNSET


class MessageStop(Struct, tag="message_stop"):
    pass


MessageEvent = MessageStart | MessagePing | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop


class MessageErrorDetail(Struct, kw_only=True):
    type: ErrorKind
    message: str
    reason: str
    param: str | Loose | None = UNSET  # the wrong field
    details: dict[str, str] | Loose = UNSET


class MessageErrorAnswer(Struct):
    """An error in Anthropic's form, as a whole answer or as the data of an event in mid-stream."""

    type: Literal["error"]
    error: MessageErrorDetail
    request_id: str
