"""The events of a streamed response: each has a type, a number, and the place in the output that it changes.

Step 8 of a request's life over HTTP. The constant part of a delta is rendered once for each item."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects.common.pieces import JsonPieces, encode_pieces
from gateway.dialects.common.sse import encode
from gateway.dialects.described.responses import (
    CallItem,
    ItemStatus,
    MessageItem,
    OutputContent,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from gateway.dialects.translation.parts import AnswerPart, PartKind

Json = dict[str, Any]
PREFIXES = {PartKind.REASONING: "rs", PartKind.TEXT: "msg", PartKind.CALL: "fc"}
_DELTAS = {
    PartKind.REASONING: "response.reasoning_text.delta",
    PartKind.TEXT: "response.output_text.delta",
    PartKind.CALL: "response.function_call_arguments.delta",
}
_GROUP_BYTES = 64 * 1024
_END = b"}\n\n"


class OutputItems:
    """The output of a response as the API spells it."""

    def __init__(self, owner: str, *, with_logprobs: bool) -> None:
        self._owner, self._with_logprobs = owner, with_logprobs

    def id(self, part: AnswerPart) -> str:
        return f"{PREFIXES[part.kind]}_{self._owner}_{part.index}"

    def begun(self, part: AnswerPart) -> OutputItem:
        if part.kind is PartKind.CALL:
            return self._call(part, "", "in_progress")
        return self._item(part, [], "in_progress")

    def ended(self, part: AnswerPart, *, complete: bool) -> OutputItem:
        status: ItemStatus = "completed" if complete else "incomplete"
        if part.kind is PartKind.CALL:
            return self._call(part, part.text, status)
        return self._item(part, [self.content(part, part.text)], status)

    def content(self, part: AnswerPart, text: str) -> OutputContent:
        """The content of a message or of reasoning."""
        if part.kind is PartKind.REASONING:
            return ReasoningText(text=text)
        return OutputText(text=text, annotations=[], logprobs=self.logprobs(part))

    def logprobs(self, part: AnswerPart) -> Any:
        """A list, or JsonPieces in its place."""
        if not self._with_logprobs or not part.logprobs:
            return []
        groups, size = [list[bytes]()], 0
        for entry in part.logprobs:
            if size > _GROUP_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(entry)
            size += len(entry)
        return JsonPieces.of_items([b",".join(group) for group in groups])

    def _item(self, part: AnswerPart, content: list[Any], status: ItemStatus) -> OutputItem:
        if part.kind is PartKind.REASONING:
            return ReasoningItem(id=self.id(part), summary=[], content=content, status=status)
        return MessageItem(id=self.id(part), role="assistant", content=content, status=status)

    def _call(self, part: AnswerPart, arguments: str, status: ItemStatus) -> CallItem:
        assert part.call is not None, "a call has its beginning"
        return CallItem(id=self.id(part), call_id=part.call.id, name=part.call.name, arguments=arguments, status=status)


class ResponseEvents:
    """Renders the events; each gets the next number."""

    def __init__(self, items: OutputItems) -> None:
        self._items, self._number = items, 0
        self._head = b""  # bytes before the text in each delta of the open item

    def event(self, kind: str, members: Mapping[str, Any]) -> list[bytes]:
        """An event in pieces: logprobs of a long answer make it large."""
        pieces = self.next(kind, members)
        self._next()
        return pieces

    def next(self, kind: str, members: Mapping[str, Any]) -> list[bytes]:
        """The event that would come now; it takes no number."""
        pieces = encode_pieces({"type": kind, **members, "sequence_number": self._number})
        pieces[0] = b"event: %b\ndata: %b" % (kind.encode(), pieces[0])
        pieces[-1] += b"\n\n"
        return pieces

    def begun(self, part: AnswerPart) -> list[bytes]:
        at = self._at(part)
        kind = _DELTAS[part.kind]
        rest = encode({"type": kind, **at})
        self._head = b'event: %b\ndata: %b,"delta":' % (kind.encode(), rest[:-1])
        added = {"output_index": part.index, "item": self._items.begun(part)}
        pieces = self.event("response.output_item.added", added)
        if part.kind is not PartKind.CALL:
            pieces += self.event("response.content_part.added", at | {"part": self._items.content(part, "")})
        return [b"".join(pieces)]

    def delta(self, text: str, logprobs: bytes | None) -> bytes:
        """`logprobs`: a list of entries; None: the open item has none."""
        more = b"" if logprobs is None else b',"logprobs":' + logprobs
        return b'%b%b%b,"sequence_number":%d%b' % (self._head, encode(text), more, self._next(), _END)

    def ended(self, part: AnswerPart, *, complete: bool) -> list[bytes]:
        at, items = self._at(part), self._items
        done = {"output_index": part.index, "item": items.ended(part, complete=complete)}
        if part.kind is PartKind.CALL:
            assert part.call is not None, "a call has its beginning"
            arguments = at | {"name": part.call.name, "arguments": part.text}
            pieces = self.event("response.function_call_arguments.done", arguments)
        elif part.kind is PartKind.TEXT:
            text = at | {"text": part.text, "logprobs": items.logprobs(part)}
            pieces = self.event("response.output_text.done", text)
            pieces += self.event("response.content_part.done", at | {"part": items.content(part, part.text)})
        else:
            pieces = self.event("response.reasoning_text.done", at | {"text": part.text})
            pieces += self.event("response.content_part.done", at | {"part": items.content(part, part.text)})
        return pieces + self.event("response.output_item.done", done)

    def _at(self, part: AnswerPart) -> Json:
        at: Json = {"item_id": self._items.id(part), "output_index": part.index}
        return at if part.kind is PartKind.CALL else at | {"content_index": 0}

    def _next(self) -> int:
        number, self._number = self._number, self._number + 1
        return number
