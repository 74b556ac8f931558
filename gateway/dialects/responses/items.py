"""The `input` of a response as the messages of a chat: messages, reasoning, calls and their results.

Step 1 of a request's life over HTTP. The `output` of one response may stand in the `input` of the next as it is."""

from collections.abc import Sequence
from typing import Any

from gateway.dialects.translation.reading import Ignored, ObjectReader
from gateway.dialects.translation.transcript import Transcript
from gateway.text.json_text import JsonBudget
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_KINDS = "message, reasoning, function_call or function_call_output"
CONTINUED = "previous_response_id"  # field that names the response whose items come first
_HINTS = ("id", "status", "phase")  # members by which OpenAI finds and labels an item again


def read_input(
    given: str | list[Json] | None, instructions: str | None, ignored: Ignored, before: Sequence[Json] = ()
) -> Transcript:
    """`before`: the items of the response that this one continues, its output among them."""
    if given is None or given == []:
        raise InvalidRequest("input", "input is missing: text, or a list of at least one item")
    transcript, budget = Transcript(), JsonBudget()
    if instructions:
        transcript.system(instructions, "instructions")
    for item in before:
        _read_item(ObjectReader(item, CONTINUED, Ignored()), transcript, budget, Ignored())
    if isinstance(given, str):
        transcript.user(given, "input")
    else:
        for at, item in enumerate(given):
            _read_item(ObjectReader(item, f"input[{at}]", ignored), transcript, budget, ignored)
    return transcript


def _read_item(item: ObjectReader, transcript: Transcript, budget: JsonBudget, ignored: Ignored) -> None:
    kind = item.any("type")
    kind = "message" if kind is None else kind
    for name in _HINTS:
        item.any(name)
    if kind == "message":
        _read_message(item, transcript, ignored)
    elif kind == "reasoning":
        thought = _texts(item, "content", ignored) or _texts(item, "summary", ignored)
        item.any("summary")
        item.without_effect("encrypted_content")
        transcript.thought("\n".join(thought), item.path)
    elif kind == "function_call":
        id, name = item.text("call_id"), item.text("name")
        arguments = budget.parse_object(item.text("arguments"), item.at("arguments"))
        transcript.called(id, name, arguments, item.path)
    elif kind == "function_call_output":
        id, output = item.text("call_id"), "\n".join(_texts(item, "output", ignored, required=True))
        transcript.result(id, output, item.path, item.at("call_id"))
    else:
        stored = ": send the item itself, or previous_response_id" if kind == "item_reference" else ""
        what = f"{item.at('type')} is {brief(repr(kind))}{stored}; an item is a {_KINDS}"
        raise InvalidRequest(item.at("type"), what)
    item.done()


def listed_input(given: str | list[Json] | None, response_id: str) -> list[Json]:
    """The items of an `input` as they are stored and listed: each has an id and says what it is."""
    if isinstance(given, str):
        given = [{"role": "user", "content": [{"type": "input_text", "text": given}]}]
    name = response_id.removeprefix("resp_")
    return [{"type": "message", "id": f"in_{name}_{at}"} | item for at, item in enumerate(given or ())]


def _read_message(item: ObjectReader, transcript: Transcript, ignored: Ignored) -> None:
    role = item.choice("role", ("user", "assistant", "system", "developer"))
    texts = _texts(item, "content", ignored, required=True)
    if role == "user":
        transcript.user("\n".join(texts), item.path)
    elif role == "assistant":
        transcript.said("".join(texts), item.path, between="\n")
    elif role is None:
        raise InvalidRequest(item.at("role"), f"{item.at('role')} is missing: it must be user, assistant or system")
    else:
        transcript.system("\n".join(texts), item.path)


def _texts(item: ObjectReader, name: str, ignored: Ignored, *, required: bool = False) -> list[str]:
    """The texts of a content, which is a text or a list of parts."""
    value = item.any(name)
    if isinstance(value, str):
        return [value]
    if value is None and required:
        raise InvalidRequest(item.at(name), f"{item.at(name)} is missing: it must be text or a list of text parts")
    return [_part(ObjectReader(part, f"{item.at(name)}[{at}]", ignored)) for at, part in enumerate(item.items(name))]


def _part(part: ObjectReader) -> str:
    kind = part.any("type")
    if kind == "refusal":
        text = part.text("refusal")
    elif kind in TEXTS:
        text = part.text("text")
        part.any("annotations"), part.any("logprobs")
    else:
        raise InvalidRequest(part.at("type"), f"{part.at('type')} is {brief(repr(kind))}; only text is supported")
    part.done()
    return text
