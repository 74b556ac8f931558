"""Fuzz targets of the gateway's texts: frames of events, tool calls and chat templates.

Cases are mostly broken pieces of what the target reads: marks, half marks, JSON, control tokens, odd characters."""

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gateway.dialects.common.sse import ChatFrames, CompletionFrames, frame
from gateway.text.chat import ChatTemplate
from gateway.text.controls import ControlTokens
from gateway.text.formats import REASONING_FORMATS, TOOL_FORMATS
from gateway.text.stops import StopStrings, TextPiece
from gateway.text.tool_calls import AnswerFormat, AnswerReader
from gateway.text.tool_choice import OfferedTools, ToolMode
from mesh.errors import InvalidRequest
from mesh.messages.jobs import End, Token
from tests.fuzz.cases import Wrong

MODEL = Path(__file__).resolve().parents[2] / "engine/builtin/pair/model"
ODD = (
    "\u2028",
    "\x00",
    "\ufffd",
    "\ufdd1",
    "é",
    "漢",
    "😀",
    "\u200d",
    "\r\n",
    "data: x\n\n",
    '"',
    "\\",
    "\\u003c",
    "\t",
)
MARKS = sorted({mark for row in (*TOOL_FORMATS, *REASONING_FORMATS) for mark in row.marks})
JSON_PIECES = (
    '{"name": "add", "arguments": ',
    '{"a": 1, "b": [true, null, -1.5e3]}',
    '{"name": "',
    'add"',
    '"arguments"',
    "{}",
    "[",
    "]",
    "{",
    "}",
    ":",
    ",",
    ";",
    '"',
    '"name"',
    '"parameters": {',
    "1e",
    "tru",
    "\\u12",
    '{"a":' * 20,
    "add",
    " ",
    "\n",
)
CONTROLS = ("<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<tool_call>", "</tools>", "<|", "|>", "<", "end|>")
TEMPLATE_PIECES = (
    "{{ messages[0].content }}",
    "{{ x }}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if x %}",
    "{% endif %}",
    "{{",
    "}}",
    "{%",
    "%}",
    "{{ messages | tojson }}",
    "{{ x | length }}",
    "{{ x.y.z }}",
    "{{ raise_exception('no') }}",
    "{{ ''.__class__ }}",
    "{{ 1 / 0 }}",
    "{% set x = 1 %}",
    "{% generation %}",
    "{% endgeneration %}",
    "a",
    "\n",
    "{#",
    "#}",
)
TOOLS: tuple[Any, ...] = ({"function": {"name": "add"}}, {"function": {"name": "get_time"}})


def sse_frames(rng: Random) -> None:
    """Every frame is one event whose data is the JSON that went in, whatever the text holds."""
    text, id = _text(rng, (*ODD, *JSON_PIECES), 8), _text(rng, ODD, 3)
    chat = ChatFrames(id=id, kind="chat.completion.chunk", created=rng.getrandbits(31), model=text[:20])
    plain = CompletionFrames(id=id, kind="text_completion", created=1, model=id)
    index = rng.randrange(130)
    logprobs = {"content": [{"token": text, "logprob": -rng.random()}]} if rng.random() < 0.3 else None
    made = rng.choice(
        (
            lambda: (chat.text(index, text, logprobs), ("choices", 0, "delta", "content"), text),
            lambda: (chat.delta(index, {"reasoning": text}), ("choices", 0, "delta", "reasoning"), text),
            lambda: (chat.finish(index, {"stop_reason": text}, id), ("choices", 0, "stop_reason"), text),
            lambda: (chat.role(index), ("choices", 0, "index"), index),
            lambda: (plain.text(index, text, logprobs), ("choices", 0, "text"), text),
            lambda: (plain.finish(index, {"stop_reason": text}, id), ("system_fingerprint",), id),
            lambda: (plain.usage({"text": text}, {}), ("usage", "text"), text),
            lambda: (frame({"error": text}), ("error",), text),
        )
    )
    sent, path, expected = made()
    if not (sent.startswith(b"data: ") and sent.endswith(b"\n\n")) or sent.count(b"\n") != 2 or b"\r" in sent:
        raise Wrong(f"no single event: {sent!r}")
    found = json.loads(sent[6:])
    for step in path:
        found = found[step]
    if found != expected:
        raise Wrong(f"{path} is {found!r}, not {expected!r}")


def tool_parsers(rng: Random) -> None:
    """No text is lost and every token leaves once, in order; calls that come whole do not depend on the cuts."""
    text = _text(rng, (*MARKS, *JSON_PIECES, *ODD), 14)
    tools, reasoning = rng.choice(TOOL_FORMATS), rng.choice((None, *REASONING_FORMATS))
    use = OfferedTools(TOOLS, ToolMode.AUTO) if rng.random() < 0.9 else OfferedTools()
    reading = AnswerFormat(use, tools, reasoning, reasoning_begun=rng.random() < 0.2, growing=rng.random() < 0.5)
    stop = (_text(rng, (*MARKS, *ODD, "a"), 2),) if rng.random() < 0.2 else ()
    first, second = (_read(rng, text, reading, tuple(filter(None, stop))) for _ in range(2))
    if not reading.growing and first != second:
        raise Wrong(f"{text!r} is read as {first} or {second}")
    shown, thought, calls = first
    whole = not stop and not calls and not reading.in_channels  # headers of channels have no text
    if whole and len(shown) + len(thought) < len("".join(text.split())) - _dropped(reading):
        raise Wrong(f"{text!r} has lost text: {first}")
    if not reading.growing:
        for _, arguments in calls:
            if not isinstance(json.loads(arguments), dict):
                raise Wrong(f"arguments are no object: {arguments!r}")


def _dropped(reading: AnswerFormat) -> int:
    """Characters of the marks of reasoning, which have no text."""
    return sum(map(len, reading.reasoning.marks)) if reading.reasoning is not None else 0


def _read(
    rng: Random, text: str, reading: AnswerFormat, stop: tuple[str, ...]
) -> tuple[str, str, list[tuple[str, str]]]:
    reader, stops = AnswerReader(reading, request_id="r"), StopStrings(stop)
    place, count, left, shown, thought = 0, 0, 0, "", ""
    calls: dict[int, list[str]] = {}

    def take(piece: TextPiece) -> None:
        nonlocal left, shown, thought
        parsed = reader.push(piece) if piece.tokens else reader.flush()
        for token in parsed.piece.tokens:
            if token.position != left:
                raise Wrong(f"token {token.position} leaves as number {left}")
            left += 1
        if (parsed.piece.text or parsed.calls or parsed.reasoning) and not parsed.piece.tokens:
            raise Wrong("text leaves without a token")
        shown, thought = shown + parsed.piece.text, thought + parsed.reasoning
        for call in parsed.calls:
            if call.later:
                calls[call.index][1] += call.arguments
            elif call.index != len(calls):
                raise Wrong(f"call {call.index} comes as number {len(calls)}")
            else:
                calls[call.index] = [call.name, call.arguments]

    while place < len(text) and stops.matched is None:
        size = rng.choice((0, 1, 1, 2, 3, 5, 8, 40))
        piece = stops.push(Token(count, 7, -1.0, (), (), End.NONE), text[place : place + size])
        place, count = place + size, count + 1
        if piece.tokens:
            take(piece)
    if (rest := stops.flush()).tokens:
        take(rest)
    take(TextPiece((), ""))
    if left != count:
        raise Wrong(f"{count - left} tokens are lost")
    return shown, thought, [(name, arguments) for name, arguments in calls.values()]


@dataclass(frozen=True)
class _Rendered:
    """The shipped model's tokenizer and template, and the control tokens of an empty chat."""

    controls: ControlTokens
    template: ChatTemplate
    marks: frozenset[int]


_SHIPPED: list[_Rendered] = []


def templates(rng: Random) -> None:
    """A client's text never becomes a control token in the shipped model's template; a random template renders or is
    refused by name."""
    if rng.random() < 0.1:
        _render(_text(rng, TEMPLATE_PIECES, 6), {"x": _text(rng, ODD, 2)})
        return
    shipped = _shipped()
    roles = [rng.choice(("system", "user", "assistant", "tool")) for _ in range(rng.randint(1, 3))]
    messages = [{"role": role, "content": _text(rng, (*CONTROLS, *ODD, "a", " "), 6)} for role in roles]
    plain = [message | {"content": message["content"] and "a"} for message in messages]
    found, expected = (_special(shipped, chat) for chat in (messages, plain))
    if any(role == "assistant" for role in roles):  # its visible marks are the model's own
        found, expected = ([number for number in ids if number < 7] for ids in (found, expected))
    if found != expected:
        raise Wrong(f"control tokens {found}, not {expected}, in {messages!r}")


def _special(shipped: _Rendered, messages: list[dict[str, str]]) -> list[int]:
    guarded, marked = shipped.controls.guard({}, messages, "messages")
    text = shipped.template.render(marked)
    return [number for number in shipped.controls.encode(text, guarded, "messages") if number in shipped.marks]


def _shipped() -> _Rendered:
    if not _SHIPPED:
        from gateway.prompts.assets import load_assets

        assets = load_assets(MODEL, "shipped")
        assert assets.template is not None, "the shipped model has a chat template"
        _SHIPPED.append(_Rendered(assets.controls, assets.template, frozenset(range(11))))
    return _SHIPPED[0]


def _render(source: str, arguments: dict[str, Any]) -> None:
    import jinja2

    try:
        ChatTemplate(source, {}).render([{"role": "user", "content": "a"}], arguments=arguments)
    except (jinja2.TemplateError, InvalidRequest):
        return


def _text(rng: Random, pieces: tuple[str, ...], most: int) -> str:
    found = [rng.choice(pieces) for _ in range(rng.randint(0, most))]
    return "".join(piece[: rng.randint(0, len(piece))] if rng.random() < 0.15 else piece for piece in found)
