"""Server-sent events of an answer in any of the gateway's APIs, as the answer that they amount to.

The gateway reads the events that it has sent with the same lines as `baton receipt` reads a file."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from gateway.receipts.answers.chunks import ChunkFold
from gateway.receipts.answers.events import EventFold
from gateway.receipts.answers.fields import SentAnswer
from gateway.receipts.answers.growing import GrowingFold
from gateway.receipts.answers.reading import loads, loads_sent, loads_slowly
from gateway.receipts.canonical import ReceiptError

DONE = "[DONE]"
_LINE = re.compile(r"\r\n|\n|\r")

Json = dict[str, Any]


class AnswerFold(Protocol):
    problems: list[str]

    def add(self, event: Json) -> None: ...

    def answer(self) -> SentAnswer: ...


@dataclass(frozen=True, slots=True)
class SentEvent:
    name: str | None
    data: str


def is_stream(text: str) -> bool:
    return any(line.startswith(("data:", "event:", ":")) for line in text.lstrip()[:4096].splitlines()[:1])


def events_of(texts: Iterable[str], problems: list[str]) -> Iterator[SentEvent]:
    """`texts`: each holds whole events. To split many megabytes at once would stop every other thread."""
    name, data = None, list[str]()
    for line in chain.from_iterable([*_LINE.split(text), ""] for text in texts):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield SentEvent(name, "\n".join(data))
            name, data = None, []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
        elif field:
            problems.append(f"a line `{line[:32]}`")


def read_events(texts: Iterable[str], take: Callable[[Json, str], None] | None = None) -> SentAnswer:
    """`texts`: the events, one or many in each. `take` gets each event and its text first; it takes the receipt out.
    None: the gateway itself has sent this."""
    problems = list[str]()
    fold = None
    done = False
    for event in events_of(texts, problems):
        if done:
            problems.append("what follows the end of the stream")
            break
        if event.data == DONE and event.name is None:
            done = True
            continue
        content = _load_sent(event) if take is None else loads(event.data)
        if not isinstance(content, dict):
            raise ReceiptError(f"an event of the stream is no JSON object: {event.data[:64]}")
        if event.name != (content.get("type") if "type" in content else None):
            problems.append("event")
        if take is not None:
            take(content, event.data)
        fold = fold or _fold_of(content)
        try:
            fold.add(content)
        except (TypeError, KeyError, AttributeError):
            problems.append("the form of an event")
    if fold is None:
        raise ReceiptError("the file has no event of an answer")
    try:
        answer = fold.answer()
    except (TypeError, KeyError, AttributeError) as error:
        raise ReceiptError(f"the events of the stream make no answer: {error}") from None
    answer.problems = problems + fold.problems
    return answer


def _load_sent(event: SentEvent) -> Any:
    """Pieces are short, and their lists are joined; an event that repeats a whole part may be large."""
    piece = event.name is None or event.name.endswith("delta")
    return loads_sent(event.data) if piece else loads_slowly(event.data)


def _fold_of(event: Json) -> AnswerFold:
    if "meta_info" in event:
        return GrowingFold()
    return EventFold() if "type" in event else ChunkFold()
