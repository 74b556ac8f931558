"""The body of a request in any of the gateway's APIs as a body of OpenAI's, which a replay sends.

The gateway translates every other API into a chat or a completion. A replay does the same here and asks for that, so
the receipt of one API is replayed over another. A body says by its members which API it is of; where it has only such
as chats and messages share, its end and the receipt tell them apart."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gateway.dialects.anthropic.request import translate as translate_message
from gateway.dialects.anthropic.types import MessagesRequest
from gateway.dialects.native.sglang import SGLANG
from gateway.dialects.native.vllm import VLLM
from gateway.dialects.openai.body import parse_body
from gateway.dialects.openai.types import ChatRequest, CommonRequest
from gateway.dialects.responses.request import translate as translate_response
from gateway.dialects.responses.types import ResponsesRequest
from gateway.receipts.canonical import ReceiptError
from mesh.errors import InvalidRequest

Json = dict[str, Any]
_MESSAGE = set(MessagesRequest.__struct_fields__)
_SHARED = (_MESSAGE & set(ChatRequest.__struct_fields__)) - {"tools", "tool_choice"}  # whose form differs
_CALLS = ("tool_use", "tool_result")  # blocks of Anthropic's messages that no other API has


def as_openai(request: Mapping[str, Any], max_tokens: Any = None) -> Json:
    """ReceiptError where the body is of an API that the gateway does not speak, or is wrong in it. `max_tokens`: the
    receipt's."""
    translate = _translation(request, max_tokens)
    if translate is None:
        return dict(request)
    try:
        plain = translate(msgspec.json.encode(request))
    except InvalidRequest as error:
        raise ReceiptError(f"the gateway refuses the request: {error.message}") from None
    body: Json = {name: value for name, value in msgspec.to_builtins(plain).items() if value is not None}
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and "json_schema" not in form:  # flat in other APIs
        inner = {name: value for name, value in form.items() if name != "type"}
        body["response_format"] = {"type": "json_schema", "json_schema": inner}
    return body


def _translation(request: Mapping[str, Any], max_tokens: Any) -> Callable[[bytes], CommonRequest] | None:
    """The translation of the API that the request is of; None for OpenAI's chats and completions."""
    if "input" in request:
        return _response
    if "token_ids" in request:
        return lambda raw: VLLM.translate(parse_body(raw, VLLM.body), [])
    if "text" in request or "input_ids" in request:
        return lambda raw: SGLANG.translate(parse_body(raw, SGLANG.body), [])
    return _message if _is_of_anthropic(request) or _reads_as_message(request, max_tokens) else None


def _reads_as_message(request: Mapping[str, Any], max_tokens: Any) -> bool:
    """A body with members of both APIs only. A message continues an assistant's turn at its end, a chat begins a new
    one; a message takes what the context leaves of its max_tokens, a chat is refused."""
    messages, given = request.get("messages"), request.get("max_tokens")
    if not set(request) <= _SHARED or not isinstance(messages, list) or not messages:
        return False
    if not all(isinstance(each, dict) and set(each) <= {"role", "content"} for each in messages):
        return False
    continued = messages[-1].get("role") == "assistant"
    return continued or (isinstance(given, int) and isinstance(max_tokens, int) and given > max_tokens)


def _is_of_anthropic(request: Mapping[str, Any]) -> bool:
    """The body has a member, a tool or a block that only messages have."""
    own = _MESSAGE - set(ChatRequest.__struct_fields__)
    tools, messages = request.get("tools"), request.get("messages")
    choice = request.get("tool_choice")
    chosen = isinstance(choice, dict) and choice.get("type") in ("auto", "any", "tool", "none")
    declared = isinstance(tools, list) and any(isinstance(tool, dict) and "input_schema" in tool for tool in tools)
    said = [each.get("content") for each in messages if isinstance(each, dict)] if isinstance(messages, list) else []
    blocks = [block for content in said if isinstance(content, list) for block in content if isinstance(block, dict)]
    called = any(block.get("type") in _CALLS for block in blocks)
    return not own.isdisjoint(request) or chosen or declared or called


def _response(raw: bytes) -> ChatRequest:
    return translate_response(parse_body(raw, ResponsesRequest), {}).chat.body


def _message(raw: bytes) -> ChatRequest:
    chat = translate_message(parse_body(raw, MessagesRequest), {}).chat.body
    chat.max_tokens = None  # there it is only a bound; the receipt has the number that was taken
    return chat
