"""The short way of a token to a client that keeps up: from the sequencer to the socket in one call, without a task.

Step 8 of a request's life. Most tokens of a stream are plain: whole characters in which no stop string and no mark of a
tool call begins. Nothing has to be decided about such a token, so it leaves at once. Every other token, and every token
of a client that is behind, goes the long way (gateway/answer.py); both keep the same state, so each may follow the
other. A token comes here only while the long way waits for the next one: it has delivered all tokens before."""

from collections.abc import Callable

from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopStrings
from gateway.text.tool_calls import AnswerReader

SendText = Callable[[str], bool]  # sends the text of one token; False: not now, and nothing was sent


class ShortWay:
    """Takes the plain tokens of one choice."""

    __slots__ = (
        "_all_text",
        "_counts",
        "_detokenizer",
        "_index",
        "_reader",
        "_send",
        "_stops",
        "_texts",
    )

    def __init__(
        self,
        counts: dict[int, int],  # tokens that the client has, by choice
        index: int,  # number of the choice
        send: SendText,
        detokenizer: Detokenizer,
        stops: StopStrings,
        reader: AnswerReader,
    ) -> None:
        self._counts, self._index, self._send = counts, index, send
        self._detokenizer, self._stops, self._reader = detokenizer, stops, reader
        self._texts = detokenizer.plain_texts

        self._all_text = stops.none and reader.passes_all  # and so it stays

    def take(self, token: int) -> bool:
        """Send a plain token; False: it goes the long way, and nothing has changed."""
        if not self._detokenizer.between:
            return False
        text = self._texts[token]
        if self._all_text:
            if not text or not self._send(text):
                return False
        elif not text or not self._stops.passes(text) or not self._reader.passes(text) or not self._send(text):
            return False
        else:
            self._reader.passed(text)
        self._counts[self._index] += 1
        return True
