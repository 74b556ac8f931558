"""The reply to one Ollama request: lines of JSON while it is generated, or one object.

Step 8 of a request's life over HTTP. A call of a tool is sent whole; the last line has counts and times."""

from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from gateway.answers.answer import Answer
from gateway.answers.events import Finished
from gateway.answers.usage import timings_of, usage_of
from gateway.dialects.described.ollama import (
    OllamaAnswer,
    OllamaCall,
    OllamaChatAnswer,
    OllamaFunction,
    OllamaMessage,
    OllamaTextAnswer,
)
from gateway.dialects.ollama.errors import line
from gateway.dialects.translation.parts import AnswerPart, AnswerParts, Happened, PartKind, PartStep
from mesh.messages.jobs import End

Clock = Callable[[], float]


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


class OllamaReply:
    def __init__(
        self,
        answer: Answer | None,
        *,
        request_id: str,
        stream: bool,
        model: str,
        chat: bool,
        shows_thinking: bool,
        clock: Clock,
    ) -> None:
        """`answer`: None where nothing was asked, so that the answer says that the model is loaded."""
        self.request_id, self.stream = request_id, stream
        self._answer = answer
        self._model = model
        self._chat = chat
        self._shows_thinking = shows_thinking
        self._clock = clock
        self._parts = AnswerParts()
        self._reason: End | None = None

    def cancel(self) -> None:
        if self._answer is not None:
            self._answer.cancel()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        async for step in self._steps():
            if (shown := self._line(step)) is not None:
                yield line(shown)
        yield line(self._ended(self._object("", "", [])))

    async def whole(self) -> OllamaAnswer:
        async for _ in self._steps():
            pass
        parts = self._parts.parts
        text = "".join(part.text for part in parts if part.kind is PartKind.TEXT)
        thoughts = "".join(part.text for part in parts if part.kind is PartKind.REASONING)
        calls = [_call(part) for part in parts if part.kind is PartKind.CALL]
        return self._ended(self._object(text, thoughts if self._shows_thinking else "", calls))

    async def _steps(self) -> AsyncGenerator[PartStep, None]:
        if self._answer is None:
            return
        async for event in self._answer.events():
            if isinstance(event, Finished):
                self._reason = event.reason
                continue
            for step in self._parts.add(event):
                yield step
        for step in self._parts.finish():
            yield step

    def _line(self, step: PartStep) -> OllamaAnswer | None:
        kind = step.part.kind
        if kind is PartKind.CALL:
            return self._object("", "", [_call(step.part)]) if step.what is Happened.ENDED else None
        if step.what is not Happened.GREW or not step.text:
            return None
        if kind is PartKind.REASONING:
            return self._object("", step.text, []) if self._shows_thinking else None
        return self._object(step.text, "", [])

    def _object(self, text: str, thoughts: str, calls: list[OllamaCall]) -> OllamaAnswer:
        now = timestamp(self._clock())
        if not self._chat:
            made = OllamaTextAnswer(model=self._model, created_at=now, done=False, response=text)
            if thoughts:
                made.thinking = thoughts
            return made
        message = OllamaMessage(content=text)
        if thoughts:
            message.thinking = thoughts
        if calls:
            message.tool_calls = calls
        return OllamaChatAnswer(model=self._model, created_at=now, done=False, message=message)

    def _ended(self, answer: OllamaAnswer) -> OllamaAnswer:
        answer.done = True
        if self._answer is None:
            answer.done_reason = "load"
            return answer
        usage, seconds = usage_of([self._answer]), timings_of([self._answer])
        answer.done_reason = "length" if self._reason is End.LENGTH else "stop"
        answer.total_duration, answer.load_duration = _nanoseconds(seconds, "total_seconds"), 0
        answer.prompt_eval_count, answer.eval_count = usage.prompt_tokens, usage.completion_tokens
        answer.prompt_eval_duration = _nanoseconds(seconds, "prefill_seconds")
        answer.eval_duration = _nanoseconds(seconds, "decode_seconds")
        return answer


def _nanoseconds(seconds: dict[str, float], name: str) -> int:
    return int(seconds.get(name, 0.0) * 1e9)


def _call(part: AnswerPart) -> OllamaCall:
    assert part.call is not None, "a call has its beginning"
    arguments: Any = msgspec.Raw(part.text.encode() or b"{}")
    return OllamaCall(OllamaFunction(part.call.name, arguments))
