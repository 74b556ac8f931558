"""Reads the answer of one choice: its text, its reasoning and its tool calls, with the tokens that each piece takes.

Step 8 of a request's life, after stop strings. Tokens leave together with all of their text, once none of it is held
back. So a client that has the tokens has exactly their text and calls, which continuing an answer at another gateway
relies on."""

import hashlib
from collections import deque
from dataclasses import dataclass

from gateway.text.answer_parser import AnswerParser
from gateway.text.formats import HARMONY_MARKS, HERMES, ReasoningFormat, ToolFormat
from gateway.text.harmony import HarmonyParser
from gateway.text.parsed import Parsed
from gateway.text.stops import TextPiece
from gateway.text.tool_choice import NO_TOOLS, OfferedTools
from mesh.messages.jobs import Token

_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_SHORT = 9  # letters and digits of an id that the templates of Mistral accept


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call, or the next piece of its arguments."""

    index: int  # number of the call in its choice, from 0
    id: str
    name: str  # empty in a later piece
    arguments: str  # text of a JSON object, or a piece of it
    later: bool = False  # continues a call that has left


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the answers to a chat are read; frozen, because it crosses from the prompt to the answer."""

    use: OfferedTools = NO_TOOLS
    tools: ToolFormat | None = HERMES  # form of the model's calls
    reasoning: ReasoningFormat | None = None  # form of its reasoning; None: reasoning is text
    reasoning_begun: bool = False  # the prompt has opened the reasoning
    growing: bool = False  # a call leaves before it is whole

    @property
    def in_channels(self) -> bool:
        """The answer is messages in channels."""
        calls = self.tools is not None and self.tools.channels
        return calls or (self.reasoning is not None and self.reasoning.channels)

    @property
    def has_parts(self) -> bool:
        """The answer may hold something besides text."""
        return bool(self.use.names) or self.reasoning is not None or self.in_channels

    @property
    def marks(self) -> frozenset[str]:
        """Marks that are read, and therefore have text even where they are special tokens."""
        if self.in_channels:
            return frozenset(HARMONY_MARKS)
        calls = self.tools.marks if self.tools is not None and self.use.names else ()
        return frozenset({*calls, *(self.reasoning.marks if self.reasoning is not None else ())})


PLAIN = AnswerFormat()


@dataclass(frozen=True, slots=True)
class ParsedPiece:
    """Tokens that leave together, their text outside of calls, their reasoning, and the calls that they complete."""

    piece: TextPiece
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""


class AnswerReader:
    """Reads one choice."""

    def __init__(self, reading: AnswerFormat, *, request_id: str = "", choice: int = 0, before: str = "") -> None:
        """`before`: text of this choice that the client already has; calls in it are counted and not returned again."""
        self._parser = _parser_of(reading)
        self._owner, self._short_ids = f"{request_id}/{choice}", reading.tools is not None and reading.tools.short_ids
        self._tokens: deque[tuple[Token, int]] = deque()  # tokens that are held back, and where their text ends
        self._reasons = reading.reasoning is not None
        self._waiting = Parsed()  # what was parsed of tokens that are held back
        self._left = 0  # where the text of the last token that has left ends
        self.reasoning_tokens = 0
        if before:
            self._parser.feed(before)
            self._left = self._parser.seen

    @property
    def count(self) -> int:
        """Calls so far that are complete."""
        return self._parser.count

    @property
    def called(self) -> bool:
        """A call has left, or at least its name."""
        return self._parser.started > 0

    @property
    def reasoning_end(self) -> int | None:
        """Characters up to the end of the reasoning; None: it has not ended."""
        return None if self._parser.in_reasoning else self._parser.reasoning_end

    def push(self, piece: TextPiece) -> ParsedPiece:
        if not self._tokens and self._parser.passes_text and not self._parser.held:
            return ParsedPiece(piece)
        if not piece.tokens and not piece.text:
            return ParsedPiece(piece)
        parsed = self._parser.feed(piece.text)
        # All tokens of a piece leave it together; which of them its text belongs to is no longer known.
        self._tokens.extend((token, self._parser.seen) for token in piece.tokens)
        return self._release(parsed, self._parser.seen - self._parser.held)

    @property
    def passes_all(self) -> bool:
        """Every token leaves at once, with all of its text and nothing else, from here on."""
        return not self._tokens and self._parser.passes_text and not self._parser.held

    def passes(self, text: str) -> bool:
        """Whether a token with this text leaves at once, with all of its text and nothing else."""
        if self._tokens or (self._reasons and self._left < self._parser.reasoning_end):
            return False
        return self._parser.passes(text)

    def passed(self, text: str) -> None:
        """A token that `passes` allows has left with this text."""
        self._parser.passed(text)
        self._left = self._parser.seen

    def flush(self) -> ParsedPiece:
        """Return everything that is held."""
        return self._release(self._parser.finish(), self._parser.seen, everything=True)

    def _release(self, parsed: Parsed, until: int, *, everything: bool = False) -> ParsedPiece:
        """Tokens whose text ends before `until` leave, with what was parsed, unless that is part of a later token."""
        parsed = _joined(self._waiting, parsed)
        ends = [end for _, end in self._tokens if end <= until]
        early = until - (ends[-1] if ends else self._left)  # characters of a token that cannot leave yet
        kept = Parsed()
        if early and not everything:
            if not ends or parsed.calls or parsed.reasoning or early > len(parsed.text):
                self._waiting = parsed
                return ParsedPiece(TextPiece((), ""))
            parsed, kept = Parsed(parsed.text[:-early]), Parsed(parsed.text[-early:])
        self._waiting = kept
        tokens = tuple(self._leave() for _ in ends)
        return ParsedPiece(TextPiece(tokens, parsed.text), self._calls(parsed), parsed.reasoning)

    def _leave(self) -> Token:
        token, end = self._tokens.popleft()
        if self._reasons and (self._parser.in_reasoning or self._left < self._parser.reasoning_end):
            self.reasoning_tokens += 1
        self._left = end
        return token

    def _calls(self, parsed: Parsed) -> tuple[ToolCall, ...]:
        return tuple(
            ToolCall(part.index, self._id(part.index), part.name or "", part.arguments, later=part.name is None)
            for part in parsed.calls
        )

    def _id(self, index: int) -> str:
        """An id that is the same when the answer is continued at another gateway."""
        digest = hashlib.blake2b(f"{self._owner}/{index}".encode(), digest_size=12)
        if not self._short_ids:
            return "call_" + digest.hexdigest()
        number, letters = int.from_bytes(digest.digest(), "little"), ""
        for _ in range(_SHORT):
            number, rest = divmod(number, len(_ALPHABET))
            letters += _ALPHABET[rest]
        return letters


def _parser_of(reading: AnswerFormat) -> AnswerParser | HarmonyParser:
    names, begun = reading.use.names, reading.reasoning_begun
    if reading.in_channels:
        reasons = reading.reasoning is not None
        return HarmonyParser(names, reasons=reasons, reasoning_begun=begun, growing=reading.growing)
    return AnswerParser(reading.tools, names, reading.reasoning, reasoning_begun=begun, growing=reading.growing)


def _joined(first: Parsed, second: Parsed) -> Parsed:
    return Parsed(first.text + second.text, first.reasoning + second.reasoning, first.calls + second.calls)
