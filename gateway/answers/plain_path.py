"""Sends the text of a plain token to a client that keeps up, without waking its reader.

Step 8 of a request's life. Most tokens of a stream are plain: whole characters in which no stop string and no mark of a
tool call begins. Nothing has to be decided about such a token, so it leaves at once. Every other token, and every token
of a client that is behind, goes through the reader (gateway/answers/answer.py); both keep the same state, so each may
follow the other. A token comes here only while the reader waits for the next one: it has delivered all tokens
before."""

from collections.abc import Callable
from dataclasses import dataclass, field

from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopStrings
from gateway.text.tool_calls import AnswerReader

SendText = Callable[[str], bool]  # sends the text of one token; False: not now, and nothing was sent


@dataclass(slots=True)
class PlainPath:
    """The path of one choice's plain tokens."""

    counts: dict[int, int]  # tokens that the client has, by choice
    index: int  # number of the choice
    send: SendText
    detokenizer: Detokenizer
    stops: StopStrings
    reader: AnswerReader
    all_text_passes: bool = field(init=False)  # without stop strings, reasoning and tools that stays so

    def __post_init__(self) -> None:
        self.all_text_passes = self.stops.none and self.reader.passes_all

    def take(self, token: int) -> bool:
        """Send a plain token. False: it has to go through the reader, and nothing has changed."""
        text = self.detokenizer.plain_texts[token]
        if not text or not self.detokenizer.between or not (self.all_text_passes or self._passes(text)):
            return False
        if not self.send(text):
            return False
        if not self.all_text_passes:
            self.reader.passed(text)
        self.counts[self.index] += 1
        return True

    def _passes(self, text: str) -> bool:
        return self.stops.passes(text) and self.reader.passes(text)
