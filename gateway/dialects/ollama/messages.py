"""The messages of an Ollama chat as those of a template. The result of a call names its tool, not the call."""

from typing import Any

from gateway.dialects.translation.reading import Ignored, ObjectReader, ignore
from gateway.dialects.translation.transcript import Transcript
from mesh.errors import InvalidRequest

Json = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
NO_IMAGES = "this gateway reads text only"


def read_messages(messages: list[Json], ignored: Ignored) -> Transcript:
    transcript, open_calls = Transcript(), list[tuple[str, str]]()  # ids and names of calls without their results
    for at, each in enumerate(messages):
        message = ObjectReader(each, f"messages[{at}]", ignored)
        role, text = message.choice("role", ROLES), message.optional_text("content") or ""
        thought = message.optional_text("thinking")
        message.refuse("images", ([],), NO_IMAGES)
        if role is None:
            raise InvalidRequest(
                message.at("role"), f"{message.at('role')} is missing: it must be {' or '.join(ROLES)}"
            )
        if role == "system":
            transcript.system(text, message.path)
        elif role == "user":
            transcript.user(text, message.path)
        elif role == "assistant":
            if thought:
                transcript.thought(thought, message.path)
            open_calls = _read_assistant(message, text, transcript, at, ignored)
        else:
            _read_result(message, text, transcript, open_calls)
        if thought and role != "assistant":
            ignore(message.at("thinking"), ignored)
        message.done()
    return transcript


def _read_assistant(
    message: ObjectReader, text: str, transcript: Transcript, at: int, ignored: Ignored
) -> list[tuple[str, str]]:
    transcript.said(text, message.path, between="\n")
    calls = list[tuple[str, str]]()
    for number, given in enumerate(message.items("tool_calls")):
        call = ObjectReader(given, f"{message.at('tool_calls')}[{number}]", ignored)
        function = ObjectReader(call.any("function"), call.at("function"), ignored)
        name, arguments = function.text("name"), function.any("arguments")
        if not isinstance(arguments, dict | None):
            raise InvalidRequest(function.at("arguments"), f"{function.at('arguments')} must be an object")
        calls.append((call.optional_text("id") or f"call_{at}_{number}", name))
        transcript.called(calls[-1][0], name, arguments or {}, message.path)
        function.any("index")
        function.done()
        call.any("type")
        call.done()
    return calls


def _read_result(message: ObjectReader, text: str, transcript: Transcript, open_calls: list[tuple[str, str]]) -> None:
    """The result of the first open call of this tool; without a tool's name, of the first open call."""
    id, name = (
        message.optional_text("tool_call_id"),
        message.optional_text("tool_name") or message.optional_text("name"),
    )
    for call in open_calls:
        if (id is None or call[0] == id) and (name is None or call[1] == name):
            open_calls.remove(call)
            transcript.result(call[0], text, message.path, message.path)
            return
    what = "the message before it has no open call" + (f" of {name}" if name else "")
    raise InvalidRequest(message.path, f"{message.path} is the result of a tool, and {what}")
