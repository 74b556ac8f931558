"""The HTTP reply to one message: its content blocks as events while they are generated, or the whole message.

Step 8 of a request's life over HTTP. A stream is message_start, the events of each block, message_delta with the reason
for the end, and message_stop."""

import hashlib
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from gateway.answers.answer import Answer
from gateway.answers.events import Finished
from gateway.answers.usage import usage_of
from gateway.dialects.anthropic.errors import PING
from gateway.dialects.common.sse import encode
from gateway.dialects.described.messages import (
    AnswerBlock,
    CountAnswer,
    MessageAnswer,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ThinkingTokens,
    ToolUseBlock,
)
from gateway.dialects.openai.signed import signed
from gateway.dialects.translation.parts import AnswerPart, AnswerParts, Happened, PartKind, PartStep
from gateway.receipts.receipts import OpenReceipt, noted_events
from mesh.messages.jobs import End

Json = dict[str, Any]
_DELTAS = {
    PartKind.REASONING: ("thinking_delta", "thinking"),
    PartKind.TEXT: ("text_delta", "text"),
    PartKind.CALL: ("input_json_delta", "partial_json"),
}


class MessagesReply:
    def __init__(
        self,
        answer: Answer,
        *,
        request_id: str,
        stream: bool,
        model: str,
        shows_thinking: bool,
        fills_context: bool,
        receipt: OpenReceipt | None = None,
    ) -> None:
        """`fills_context`: the answer may take all that the context leaves, which is less than max_tokens."""
        self.request_id, self.stream = request_id, stream
        self._answer = answer
        self._shows_thinking = shows_thinking
        self._receipt = receipt
        self._at_length = "model_context_window_exceeded" if fills_context else "max_tokens"
        self._parts = AnswerParts()
        self._head = b""  # bytes before the text in each delta of the open block
        self._fixed: Json = {"id": f"msg_{request_id}", "type": "message", "role": "assistant", "model": model}

    def cancel(self) -> None:
        self._answer.cancel()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        finished: Finished | None = None
        begun = False
        async for event in noted_events(self._receipt, self._answer):
            if not begun:
                begun = True
                yield self._sent(self._event("message_start", {"message": self._message([], None)}))
            if isinstance(event, Finished):
                finished = event
                continue
            for step in self._parts.add(event):
                if frame := self.frame(step):
                    yield self._sent(frame)
        for step in self._parts.finish():
            if frame := self.frame(step):
                yield self._sent(frame)
        last, stop = {"delta": self._end(finished), "usage": self._usage()}, self._event("message_stop", {})
        if self._receipt is not None:
            last |= await self._receipt.of_stream(self._event("message_delta", last), stop)
        yield self._event("message_delta", last)
        yield stop

    async def whole(self) -> MessageAnswer:
        finished: Finished | None = None
        async for event in noted_events(self._receipt, self._answer):
            if isinstance(event, Finished):
                finished = event
            else:
                for _ in self._parts.add(event):
                    pass
        for _ in self._parts.finish():
            pass
        message = self._message([self._block(part) for part in self._parts.parts], finished)
        return await signed(self._receipt, message)

    def _sent(self, frame: bytes) -> bytes:
        return frame if self._receipt is None else self._receipt.sent(frame)

    def _message(self, content: list[AnswerBlock], finished: Finished | None) -> MessageAnswer:
        return MessageAnswer(**self._fixed, content=content, **self._end(finished), usage=self._usage())

    def _end(self, finished: Finished | None) -> Json:
        """The reason for the end; null while there is none."""
        reason: str | None = "end_turn"
        if finished is None:
            reason = None
        elif finished.reason is End.LENGTH:
            reason = self._at_length
        elif finished.called:
            reason = "tool_use"
        elif finished.stop_string is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": finished.stop_string if finished is not None else None}

    def _usage(self) -> MessageUsage:
        """The counts of Anthropic: input_tokens are those that no cache held."""
        usage = usage_of([self._answer])
        return MessageUsage(
            input_tokens=usage.prompt_tokens - usage.cached_tokens,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=usage.cached_tokens,
            output_tokens=usage.completion_tokens,
            output_tokens_details=ThinkingTokens(usage.reasoning_tokens),
        )

    def _block(self, part: AnswerPart) -> AnswerBlock:
        if part.kind is PartKind.TEXT:
            return TextBlock(text=part.text)
        if part.kind is PartKind.REASONING:
            return ThinkingBlock(thinking=part.text if self._shows_thinking else "", signature=_signature(part))
        return self._call(part, msgspec.Raw(part.text.encode()))

    def _call(self, part: AnswerPart, given: object) -> ToolUseBlock:
        assert part.call is not None, "a call has its beginning"
        return ToolUseBlock(id=part.call.id, name=part.call.name, input=given)

    # ---- events

    def frame(self, step: PartStep) -> bytes:
        """The events of a step; empty where the client sees none."""
        part = step.part
        if step.what is Happened.BEGAN:
            return self._begin(part)
        if step.what is Happened.ENDED:
            signed = b""
            if part.kind is PartKind.REASONING:
                delta = {"type": "signature_delta", "signature": _signature(part)}
                signed = self._event("content_block_delta", {"index": part.index, "delta": delta})
            return signed + self._event("content_block_stop", {"index": part.index})
        if part.kind is PartKind.REASONING and not self._shows_thinking:
            return b""
        return self._head + encode(step.text) + b"}}\n\n"

    def _begin(self, part: AnswerPart) -> bytes:
        kind, member = _DELTAS[part.kind]
        head = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
        self._head = head % (part.index, kind.encode(), member.encode())
        block: AnswerBlock = TextBlock(text="")
        if part.kind is PartKind.REASONING:
            block = ThinkingBlock(thinking="", signature="")
        elif part.kind is PartKind.CALL:
            block = self._call(part, {})
        started = self._event("content_block_start", {"index": part.index, "content_block": block})
        return started if part.index else started + PING

    def _event(self, kind: str, members: Json) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **members}))


class MessagesCountReply:
    """The answer to a question for the number of a prompt's tokens; nothing runs for it."""

    stream = False

    def __init__(self, request_id: str, tokens: int) -> None:
        self.request_id, self._tokens = request_id, tokens

    async def whole(self) -> CountAnswer:
        return CountAnswer(self._tokens)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yields nothing: a count is never streamed."""
        for frame in list[bytes]():
            yield frame

    def cancel(self) -> None:
        pass


def _signature(part: AnswerPart) -> str:
    """A hash of the text: clients keep a signature beside thoughts, and nothing here checks it."""
    return hashlib.blake2b(part.text.encode(), digest_size=16).hexdigest()
