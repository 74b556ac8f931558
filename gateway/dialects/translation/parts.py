"""The answer of one choice as a row of parts: reasoning, text and calls, each complete before the next one begins.

Step 8 of a request's life. The streams of other chat APIs open a part, let it grow and close it; their whole answers
list the same parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.answers.events import Delta
from gateway.text.tool_calls import ToolCall
from mesh.messages.jobs import Token


class PartKind(Enum):
    REASONING = "reasoning"
    TEXT = "text"
    CALL = "call"


@dataclass(slots=True)
class AnswerPart:
    index: int  # place among the parts of the answer
    kind: PartKind
    call: ToolCall | None = None  # the call's beginning, with its id and name
    pieces: list[str] = field(default_factory=list)
    logprobs: list[bytes] = field(default_factory=list)  # encoded entries, for clients that want them

    @property
    def text(self) -> str:
        """The text, or the arguments of the call."""
        return "".join(self.pieces)


class Happened(Enum):
    BEGAN = "began"
    GREW = "grew"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class PartStep:
    what: Happened
    part: AnswerPart
    text: str = ""  # by which the part grew
    tokens: Sequence[Token] = ()  # tokens of this text, as far as they are known


class AnswerParts:
    def __init__(self) -> None:
        self.parts: list[AnswerPart] = []
        self._open: AnswerPart | None = None

    def add(self, delta: Delta) -> Iterator[PartStep]:
        """Reasoning comes first in a delta; pieces that end a call come before its text, and new calls behind it."""
        if delta.reasoning:
            yield from self._grow(PartKind.REASONING, delta.reasoning)
        new = next((at for at, call in enumerate(delta.calls) if not call.later), len(delta.calls))
        for call in delta.calls[:new]:
            yield from self._grow_call(call)
        tokens = () if delta.calls or delta.reasoning else delta.tokens
        in_text = self._open is not None and self._open.kind is PartKind.TEXT
        if delta.text or (tokens and in_text):
            yield from self._grow(PartKind.TEXT, delta.text, tokens)
        for call in delta.calls[new:]:
            if not call.later:
                yield from self._begin(PartKind.CALL, call)
            yield from self._grow_call(call)

    def finish(self) -> Iterator[PartStep]:
        """Ends the last part. An answer without any has an empty text."""
        if not self.parts:
            yield from self._begin(PartKind.TEXT)
        yield from self._end()

    def _grow(self, kind: PartKind, text: str, tokens: Sequence[Token] = ()) -> Iterator[PartStep]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(kind)
        assert self._open is not None, "a part has begun"
        self._open.pieces.append(text)
        yield PartStep(Happened.GREW, self._open, text, tokens)

    def _grow_call(self, call: ToolCall) -> Iterator[PartStep]:
        assert self._open is not None and self._open.kind is PartKind.CALL, "pieces of a call follow its beginning"
        if call.arguments:
            self._open.pieces.append(call.arguments)
            yield PartStep(Happened.GREW, self._open, call.arguments)

    def _begin(self, kind: PartKind, call: ToolCall | None = None) -> Iterator[PartStep]:
        yield from self._end()
        self._open = AnswerPart(len(self.parts), kind, call)
        self.parts.append(self._open)
        yield PartStep(Happened.BEGAN, self._open)

    def _end(self) -> Iterator[PartStep]:
        if self._open is not None:
            ended, self._open = self._open, None
            yield PartStep(Happened.ENDED, ended)
