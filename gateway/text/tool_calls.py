"""Tool calls, read from an answer's text while it streams: <tool_call>, a JSON object, </tool_call>.

Step 8 of a request's life, after stop strings. The tokens of a call leave together once the call is whole, so a client
that has the tokens has their text or their call. Text that only looks like a call (no JSON, a tool that was not
offered, an answer that ends in the middle of it) stays text: nothing that the model wrote is lost."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.text.stops import TextPiece
from mesh.messages import Token

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    index: int  # number of the call in its choice, from 0
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class ParsedPiece:
    """Tokens that leave together, their text outside of calls, and the calls that they complete."""

    piece: TextPiece
    calls: tuple[ToolCall, ...] = ()


class ToolCallReader:
    """Reads the calls of one choice."""

    def __init__(self, names: frozenset[str], *, request_id: str = "", choice: int = 0, before: str = "") -> None:
        """`names`: the tools that the client offered; without any, everything is text. `before`: text of this choice
        that the client already has; calls in it are counted and not returned again."""
        self._names, self._owner = names, f"{request_id}/{choice}"
        self._tokens: list[Token] = []  # tokens that are held back
        self._text = ""  # text of the held tokens
        self.count = 0  # calls so far
        self._after_call = False  # only white space since the last call
        self._split(before)

    def push(self, piece: TextPiece) -> ParsedPiece:
        if not self._names:
            return ParsedPiece(piece)
        self._tokens.extend(piece.tokens)
        self._text += piece.text
        return ParsedPiece(TextPiece((), "")) if _ends_open(self._text) else self.flush()

    def flush(self) -> ParsedPiece:
        """Return everything that is held."""
        text, calls = self._split(self._text)
        piece = TextPiece(tuple(self._tokens), text)
        self._tokens, self._text = [], ""
        return ParsedPiece(piece, calls)

    def _split(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Separate text and calls; white space right after a call is dropped."""
        texts: list[str] = []
        calls: list[ToolCall] = []
        for part, inside in _parts(text):
            name, arguments = _parse_call(part) if inside else (None, "")
            if name in self._names:
                calls.append(ToolCall(self.count, self._new_id(), str(name), arguments))
                self.count += 1
                self._after_call = True
                continue
            shown = f"{OPEN}{part}{CLOSE}" if inside else part.lstrip() if self._after_call else part
            self._after_call = self._after_call and not shown
            texts.append(shown)
        return "".join(texts), tuple(calls)

    def _new_id(self) -> str:
        """An id that is the same when the answer is continued at another gateway."""
        return "call_" + hashlib.blake2b(f"{self._owner}/{self.count}".encode(), digest_size=12).hexdigest()


def _ends_open(text: str) -> bool:
    """Whether the text ends inside a call, or with the beginning of a call's opening mark."""
    rest = text.rpartition(CLOSE)[2]
    return OPEN in rest or any(rest.endswith(OPEN[:length]) for length in range(1, len(OPEN)))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """Parts of the text in order; True marks the inside of a call."""
    while OPEN in text and CLOSE in text.partition(OPEN)[2]:
        before, _, text = text.partition(OPEN)
        if before:
            yield before, False
        inside, _, text = text.partition(CLOSE)
        yield inside, True
    if text:
        yield text, False


def _parse_call(text: str) -> tuple[str | None, str]:
    """Name and arguments of a call; no name if the text is no call."""
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None, ""
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or not isinstance(call.get("name"), str):
        return None, ""
    return call["name"], json.dumps(arguments, ensure_ascii=False)
