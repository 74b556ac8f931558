"""The short way of a token to a client that keeps up: from the sequencer to the socket in one call, without a task.

Step 8 of a request's life. Most tokens of a stream are plain: whole characters in which no stop string and no mark of a
tool call begins. Nothing has to be decided about such a token, so it leaves at once. Every other token, and every token
of a client that is behind, goes the long way (gateway/answers/answer.py); both keep the same state, so each may follow
the other. A token comes here only while the long way waits for the next one: it has delivered all tokens before."""

from collections.abc import Callable

from gateway.text.detokenizer import Detokenizer
from gateway.text.stops import StopStrings
from gateway.text.tool_calls import AnswerReader

SendText = Callable[[str], bool]  # sends the text of one token; False: not now, and nothing was sent


def short_way(
    counts: dict[int, int],  # tokens that the client has, by choice
    index: int,  # number of the choice
    send: SendText,
    detokenizer: Detokenizer,
    stops: StopStrings,
    reader: AnswerReader,
) -> Callable[[int], bool]:
    """A function that sends a plain token of one choice. It returns False where a token has to go the long way; then
    nothing has changed."""
    texts = detokenizer.plain_texts

    def take_text(token: int) -> bool:
        text = texts[token]
        if not text or not detokenizer.between or not send(text):
            return False
        counts[index] += 1
        return True

    def take(token: int) -> bool:
        text = texts[token]
        if not text or not detokenizer.between or not stops.passes(text) or not reader.passes(text) or not send(text):
            return False
        reader.passed(text)
        counts[index] += 1
        return True

    return take_text if stops.none and reader.passes_all else take  # what passes all text goes on to do so
