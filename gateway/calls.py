"""Calls of tools, read from an answer's text while it streams: <tool_call>, a JSON object, </tool_call>.

Step 8 of a request's life, after stop strings. Tokens of a call leave when it is whole, so whoever has the tokens has
their text or their call. What only looks like a call (no JSON, a tool that was not offered, an end in the middle) stays
text: nothing that the model wrote is lost."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.stops import Piece
from mesh.messages import Token

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class Call:
    index: int  # among the calls of its choice
    id: str
    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True)
class Read:
    """Tokens that leave together, their text outside of calls, and the calls that they complete."""

    piece: Piece
    calls: tuple[Call, ...] = ()


class CallReader:
    """Of one choice. `names`: the tools that were offered; without any, all is text."""

    def __init__(self, names: frozenset[str], *, request_id: str = "", choice: int = 0, before: str = "") -> None:
        """`before`: what the client already has of this choice; its calls count, and are not told again."""
        self._names, self._owner = names, f"{request_id}/{choice}"
        self._tokens: list[Token] = []  # held back
        self._text = ""  # theirs
        self.count = 0  # of calls so far
        self._after = False  # only blanks since the last one
        self._split(before)

    def push(self, piece: Piece) -> Read:
        if not self._names:
            return Read(piece)
        self._tokens.extend(piece.tokens)
        self._text += piece.text
        return Read(Piece((), "")) if _is_open(self._text) else self.flush()

    def flush(self) -> Read:
        """All that is held."""
        text, calls = self._split(self._text)
        piece = Piece(tuple(self._tokens), text)
        self._tokens, self._text = [], ""
        return Read(piece, calls)

    def _split(self, text: str) -> tuple[str, tuple[Call, ...]]:
        """Text and calls; blanks behind a call belong to neither."""
        texts: list[str] = []
        calls: list[Call] = []
        for part, inside in _parts(text):
            name, arguments = _read_call(part) if inside else (None, "")
            if name in self._names:
                calls.append(Call(self.count, self._new_id(), str(name), arguments))
                self.count += 1
                self._after = True
                continue
            shown = f"{OPEN}{part}{CLOSE}" if inside else part.lstrip() if self._after else part
            self._after = self._after and not shown
            texts.append(shown)
        return "".join(texts), tuple(calls)

    def _new_id(self) -> str:
        """The same when the answer is continued elsewhere."""
        return "call_" + hashlib.blake2b(f"{self._owner}/{self.count}".encode(), digest_size=12).hexdigest()


def _is_open(text: str) -> bool:
    """Does it end inside a call, or in what may become its mark?"""
    rest = text.rpartition(CLOSE)[2]
    return OPEN in rest or any(rest.endswith(OPEN[:length]) for length in range(1, len(OPEN)))


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """In order; True: what stands between the marks of a call."""
    while OPEN in text and CLOSE in text.partition(OPEN)[2]:
        before, _, text = text.partition(OPEN)
        if before:
            yield before, False
        inside, _, text = text.partition(CLOSE)
        yield inside, True
    if text:
        yield text, False


def _read_call(text: str) -> tuple[str | None, str]:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None, ""
    arguments = call.get("arguments", {}) if isinstance(call, dict) else None
    if not isinstance(arguments, dict) or not isinstance(call.get("name"), str):
        return None, ""
    return call["name"], json.dumps(arguments, ensure_ascii=False)
