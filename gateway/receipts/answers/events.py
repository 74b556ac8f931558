"""The events of a streamed response or message, and the whole answer that they amount to.

These events say most things twice: in pieces, and again when a part ends. All of it counts: pieces are joined, every
other event stays as it is, and the order of their types is kept."""

from typing import Any

from gateway.receipts.answers.fields import LongList, SentAnswer, content_hash
from gateway.receipts.answers.reading import loads
from gateway.receipts.canonical import ReceiptError

Json = dict[str, Any]
_ENDS = ("response.completed", "response.incomplete")
_PARTS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
_PING = {"type": "ping"}
_ARGUMENTS = "input_json_delta"


class _Delta:
    """The joined pieces of one part."""

    def __init__(self, event: Json, member: str) -> None:
        self._event, self._member = event, member  # that has the text, in `delta` or in place of it
        self._pieces, self._logprobs = list[str](), LongList()
        self.key = content_hash(_without(event, member))

    def add(self, event: Json) -> None:
        inner = event["delta"]
        self._pieces.append(inner[self._member] if self._member else inner)
        self._logprobs.extend(event.get("logprobs", []))

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def event(self) -> Json:
        found = _without(self._event, self._member)
        found["delta"] = found["delta"] | {self._member: self.text} if self._member else self.text
        return found | ({"logprobs": self._logprobs} if "logprobs" in self._event else {})


class EventFold:
    def __init__(self) -> None:
        self._events: dict[str, list[Json | _Delta]] = {}
        self._order, self._count = list[str](), 0
        self._numbers, self._numbered = LongList(), False
        self.problems = list[str]()

    def add(self, event: Json) -> None:
        if event == _PING:  # comes whenever a stream would rest for long
            return
        kind = event.get("type")
        self._count += 1
        if not isinstance(kind, str):
            self.problems.append("type")
            return
        if self._order[-1:] != [kind]:
            self._order.append(kind)
        if "sequence_number" in event:
            self._numbers.extend([event["sequence_number"]])
            self._numbered = True
        rest = {name: value for name, value in event.items() if name != "sequence_number"}
        found, member = self._events.setdefault(kind, []), _text_member(rest)
        if member is None:
            found.append(rest)
            return
        last = found[-1] if found else None
        if not isinstance(last, _Delta) or last.key != content_hash(_without(rest, member)):
            last = _Delta(rest, member)
            found.append(last)
        last.add(rest)

    def answer(self) -> SentAnswer:
        events = {kind: [_event(each) for each in found] for kind, found in self._events.items()}
        value = self._response(events) if "message_start" not in events else self._message(events)
        stream: Json = {_name(kind): found for kind, found in events.items()}
        stream |= {"order": self._order, "events": self._count}
        stream |= {"sequence_number": self._numbers} if self._numbered else {}
        return SentAnswer(value, stream, self.problems)

    def _response(self, events: dict[str, list[Json]]) -> Any:
        ends = [end for kind in _ENDS for end in events.get(kind, ()) if "response" in end]
        if len(ends) != 1:
            self.problems.append("response.completed")
            return None
        return ends[0].pop("response")

    def _message(self, events: dict[str, list[Json]]) -> Any:
        start, ends = events["message_start"][0].get("message"), events.get("message_delta", [])
        blocks = {_place(each): each.get("content_block") for each in events.get("content_block_start", ())}
        ended = ends[0].get("delta") if len(ends) == 1 else None
        if not isinstance(start, dict) or not isinstance(ended, dict):
            self.problems.append("message_delta")
            return None
        content = dict[str, Json]()
        for index, block in blocks.items():
            content[index] = dict(block) if isinstance(block, dict) else {}
        for each in self._events.get("content_block_delta", ()):
            event = _event(each)
            if isinstance(each, _Delta) and _place(event) in content:
                _grow(content[_place(event)], event["delta"]["type"], each.text)
        message = start | {"content": list(content.values())} | ended
        return message | ({"usage": ends[0]["usage"]} if "usage" in ends[0] else {})


def _place(event: Json) -> str:
    return str(event.get("index"))


def _grow(block: Json, kind: str, text: str) -> None:
    if kind == _ARGUMENTS:
        try:
            block["input"] = loads(text)
        except ReceiptError:
            block["input"] = text
    else:
        before = block.get(_PARTS[kind])
        block[_PARTS[kind]] = (before if isinstance(before, str) else "") + text


def _text_member(event: Json) -> str | None:
    """The member of `delta` that has the text; empty: `delta` is the text. None: this event has no piece of a text."""
    delta, logprobs = event.get("delta"), event.get("logprobs", [])
    if not isinstance(logprobs, list):
        return None
    if isinstance(delta, str):
        return ""
    if not isinstance(delta, dict):
        return None
    kind = delta.get("type")
    member = "partial_json" if kind == _ARGUMENTS else _PARTS.get(str(kind))
    return member if member is not None and isinstance(delta.get(member), str) else None


def _without(event: Json, member: str) -> Json:
    """The members that all pieces of a part repeat."""
    rest = {name: value for name, value in event.items() if name != "logprobs"}
    delta = rest["delta"]
    inner = {name: value for name, value in delta.items() if name != member} if member else ""
    return rest | {"delta": inner}


def _event(each: Json | _Delta) -> Json:
    return each.event() if isinstance(each, _Delta) else each


def _name(kind: str) -> str:
    return kind.replace(".", "_")
