"""`system` and `messages` with their content blocks as the messages of a chat.

Step 1 of a request's life over HTTP. Texts of users that follow each other become one message, as Anthropic documents;
so do the turns of an assistant. What a message has returned as `content` may stand in the next request as it is."""

from typing import Any

from gateway.dialects.translation.reading import Ignored, ObjectReader
from gateway.dialects.translation.transcript import Transcript
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
ERROR = "Error: "  # stands before the result of a call that failed
_ROLES = ("user", "assistant", "system")


def read_messages(messages: list[Json] | None, system: str | list[Json] | None, ignored: Ignored) -> Transcript:
    if not messages:
        raise InvalidRequest("messages", "messages needs at least one message")
    transcript = Transcript()
    if system:
        transcript.system(_texts(system, "system", ignored), "system")
    for at, message in enumerate(messages):
        _read_message(ObjectReader(message, f"messages[{at}]", ignored), transcript, ignored)
    return transcript


def open_path(transcript: Transcript) -> str | None:
    """The path of an assistant's message at the end, which the answer continues; None: the answer begins a turn."""
    last, path = transcript.messages()[-1], transcript.paths[-1]
    if last["role"] != "assistant":
        return None
    if last.get("tool_calls"):
        raise InvalidRequest(path, f"{path} calls a tool: a tool_result must follow it")
    if not last["content"]:
        raise InvalidRequest(path, f"{path} has no text that the answer could continue")
    return path


def _read_message(message: ObjectReader, transcript: Transcript, ignored: Ignored) -> None:
    role, content, path = message.choice("role", _ROLES), message.any("content"), message.at("content")
    message.done()
    if role is None:
        raise InvalidRequest(message.at("role"), f"{message.at('role')} is missing: it must be user or assistant")
    if role == "system":
        transcript.system(_texts(content, path, ignored), message.path)
        return
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(blocks, list) or not blocks:
        raise InvalidRequest(path, f"{path} must be text or a list of at least one content block")
    for at, given in enumerate(blocks):
        block = ObjectReader(given, path if blocks is not content else f"{path}[{at}]", ignored)
        if role == "user":
            _read_user(block, transcript, message.path, ignored)
        else:
            _read_assistant(block, transcript, message.path)
        block.done()


def _read_user(block: ObjectReader, transcript: Transcript, path: str, ignored: Ignored) -> None:
    kind = block.any("type")
    if kind == "text":
        transcript.user(_text(block), path, joined=True)
    elif kind == "tool_result":
        id, content = block.text("tool_use_id"), block.any("content")
        text = "" if content is None else _texts(content, block.at("content"), ignored)
        failed = ERROR if block.flag("is_error") else ""
        transcript.result(id, failed + text, block.path, block.at("tool_use_id"))
    else:
        raise _unknown(block, kind, "text or tool_result")


def _read_assistant(block: ObjectReader, transcript: Transcript, path: str) -> None:
    kind = block.any("type")
    if kind == "text":
        transcript.said(_text(block), path, between="")
    elif kind == "thinking":
        block.any("signature")  # nothing checks it
        transcript.thought(block.text("thinking"), path)
    elif kind == "redacted_thinking":
        block.without_effect("data")  # only its author can read it
        transcript.said("", path, between="")
    elif kind == "tool_use":
        id, name, given = block.text("id"), block.text("name"), block.any("input")
        if not isinstance(given, dict | None):
            raise InvalidRequest(block.at("input"), f"{block.at('input')} must be an object")
        block.any("caller")
        transcript.called(id, name, given or {}, path)
    else:
        raise _unknown(block, kind, "text, thinking or tool_use")


def _texts(value: Any, path: str, ignored: Ignored) -> str:
    """A text, or the texts of a list of blocks, each on a line of its own."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(path, f"{path} must be text or a list of text blocks")
    texts = list[str]()
    for at, given in enumerate(value):
        block = ObjectReader(given, f"{path}[{at}]", ignored)
        if (kind := block.any("type")) != "text":
            raise _unknown(block, kind, "text")
        texts.append(_text(block))
        block.done()
    return "\n".join(texts)


def _text(block: ObjectReader) -> str:
    block.any("citations")  # citations are those of documents, which no request can have
    return block.text("text")


def _unknown(block: ObjectReader, kind: Any, known: str) -> InvalidRequest:
    return InvalidRequest(block.at("type"), f"{block.at('type')} is {brief(repr(kind))}; here it must be {known}")
