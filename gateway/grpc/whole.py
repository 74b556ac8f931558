"""The events of a stream as one answer, and what a receipt signs of both.

Step 8 of a request's life over gRPC."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from google.protobuf import json_format

from baton.inference.v1 import inference_pb2 as pb
from gateway.receipts.answers.chunks import add_column
from gateway.receipts.answers.fields import SentAnswer
from gateway.receipts.canonical import ReceiptError

Json = dict[str, Any]


class WholeAnswer:
    """An answer that grows by the events of its stream."""

    def __init__(self) -> None:
        self._response, self._choices = pb.GenerateResponse(), dict[int, pb.Choice]()

    def add(self, event: pb.StreamGenerateResponse) -> None:
        response, kind = self._response, event.WhichOneof("event")
        if kind == "started":
            response.started.CopyFrom(event.started)
            response.request_id = event.started.request_id
        elif kind == "finished":
            response.finished.CopyFrom(event.finished)
        elif kind == "prompt_logprobs":
            grow_scores(response.prompt_logprobs, event.prompt_logprobs)
        elif kind is not None:
            index = getattr(event, kind).index
            grow(self._choices.setdefault(index, pb.Choice(index=index)), event)

    def response(self) -> pb.GenerateResponse:
        del self._response.choices[:]
        self._response.choices.extend(self._choices[index] for index in sorted(self._choices))
        return self._response


async def whole(events: AsyncIterator[pb.StreamGenerateResponse]) -> pb.GenerateResponse:
    """The events of a stream as one answer."""
    found = WholeAnswer()
    async for event in events:
        found.add(event)
    return found.response()


def grow(choice: pb.Choice, event: pb.StreamGenerateResponse) -> None:
    """Add an event to the choice of a whole answer."""
    if event.WhichOneof("event") == "delta":
        choice.token_ids.extend(event.delta.token_ids)
        choice.text += event.delta.text
        choice.logprobs.extend(event.delta.logprobs)
        choice.tool_calls.extend(event.delta.tool_calls)
        if event.delta.reasoning:
            choice.reasoning += event.delta.reasoning
    else:
        choice.finished.CopyFrom(event.choice_finished)


def grow_scores(scores: pb.PromptLogprobs, part: pb.PromptLogprobs) -> None:
    """Add an event to the prompt's logprobs of a whole answer."""
    first = scores.position if scores.HasField("position") else part.position
    scores.MergeFrom(part)
    scores.position = first


def sent_answer(events: Iterable[bytes]) -> SentAnswer:
    """The answer that the gateway has sent, from its encoded events."""
    return _streamed(pb.StreamGenerateResponse.FromString(event) for event in events)


def read_messages(values: Sequence[Json]) -> tuple[SentAnswer, str, str | None]:
    """A GenerateResponse, or several StreamGenerateResponses, in the JSON form of protobuf: the answer, its receipt and
    its salt."""
    problems = list[str]()
    if len(values) == 1 and "choices" in values[0]:
        response = _parsed(values[0], pb.GenerateResponse(), problems)
        receipt, salt = _taken(response.finished)
        return SentAnswer(_json(response), None, problems), receipt, salt
    events = [_parsed(value, pb.StreamGenerateResponse(), problems) for value in values]
    ends = [_taken(event.finished) for event in events if event.WhichOneof("event") == "finished"]
    if len(ends) != 1:
        raise ReceiptError(f"the file has {len(ends)} last events of an answer")
    answer = _streamed(events)
    answer.problems = problems
    return answer, *ends[0]


def _streamed(events: Iterable[pb.StreamGenerateResponse]) -> SentAnswer:
    """The whole answer, and of each member of the events all values that it has."""
    whole = WholeAnswer()
    columns = Json()
    order = list[str]()
    for event in events:
        whole.add(event)
        kind = event.WhichOneof("event") or "nothing"
        if order[-1:] != [kind]:
            order.append(kind)
        for name, value in _json(event).items():
            add_column(columns, name, value)
    return SentAnswer(_json(whole.response()), columns | {"order": order})


def _json(message: Any) -> Json:
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def _parsed(value: Any, message: Any, problems: list[str]) -> Any:
    try:
        return json_format.ParseDict(value, message)
    except json_format.ParseError as error:
        problems.append(f"a member that no such answer has: {error}; it")
    try:
        return json_format.ParseDict(value, type(message)(), ignore_unknown_fields=True)
    except json_format.ParseError as error:
        raise ReceiptError(f"the file is no answer of gRPC: {error}") from None


def _taken(finished: pb.Finished) -> tuple[str, str | None]:
    receipt, salt = finished.receipt_json, finished.receipt_salt if finished.HasField("receipt_salt") else None
    finished.ClearField("receipt_json")
    finished.ClearField("receipt_salt")
    return receipt, salt
