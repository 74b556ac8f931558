"""Calls and reasoning are read from text however it is cut, and whatever is no call stays text."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gateway.text.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_THINK, THINK, ToolFormat
from gateway.text.stops import TextPiece
from gateway.text.tool_calls import AnswerFormat, AnswerReader, ParsedPiece, ToolCall
from gateway.text.tool_choice import OfferedTools, ToolMode
from mesh.messages.jobs import End, Token

TOOLS: tuple[Any, ...] = tuple({"function": {"name": name}} for name in ("add", "get_time"))
OFFERED = AnswerFormat(use=OfferedTools(TOOLS, ToolMode.AUTO))
NO_TOOLS = AnswerFormat()
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "zwei"}}\n</tool_call>'
TIME = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
ARGUMENTS = {"a": [1, -2.5e3, None, True], "b": 'quo"te </tool_call> \\ [TOOL_CALLS] ; é\u2028', "c": {"d": {}}}
TEXT = json.dumps(ARGUMENTS)


def pieces(text: str, rng: Random | None = None) -> list[TextPiece]:
    """Cut anywhere; one letter each without a generator."""
    found: list[TextPiece] = []
    place = 0
    while place < len(text):
        size = rng.randint(1, 20) if rng else 1
        part = text[place : place + size]
        token = Token(len(found), 7, -1.0, (), (), End.NONE)
        found.append(TextPiece((token,), part))
        place += size
    return found


def reads_of(text: str, reading: AnswerFormat, rng: Random | None = None) -> tuple[list[ParsedPiece], AnswerReader]:
    reader = AnswerReader(reading, request_id="r1")
    cut = pieces(text, rng)
    reads = [*map(reader.push, cut), reader.flush()]
    assert [token.position for one in reads for token in one.piece.tokens] == list(range(len(cut)))
    assert all(one.piece.tokens for one in reads if one.piece.text or one.calls or one.reasoning)
    return reads, reader


def read(
    text: str, rng: Random | None = None, reading: AnswerFormat = OFFERED
) -> tuple[str, list[ToolCall], AnswerReader]:
    reads, reader = reads_of(text, reading, rng)
    return "".join(one.piece.text for one in reads), [call for one in reads for call in one.calls], reader


def grown(calls: list[ToolCall]) -> list[tuple[int, str, Any]]:
    """Whole calls from the pieces of a stream."""
    whole: dict[int, list[Any]] = {}
    for call in calls:
        if call.later:
            whole[call.index][1] += call.arguments
        else:
            assert call.index == len(whole)
            whole[call.index] = [call.name, call.arguments]
    return [(index, name, json.loads(arguments)) for index, (name, arguments) in whole.items()]


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_the_same_wherever_the_text_is_cut(seed: int) -> None:
    text, calls, _ = read(f"Let me see.\n{ADD}\n{TIME}", Random(seed) if seed else None)
    assert text == "Let me see.\n"
    assert [(call.index, call.name, json.loads(call.arguments)) for call in calls] == [
        (0, "add", {"a": 1, "b": "zwei"}),
        (1, "get_time", {}),
    ]
    assert len({call.id for call in calls}) == 2


FORMS: list[tuple[ToolFormat, str]] = [
    (HERMES, f'<tool_call>{{"name": "add", "arguments": {TEXT}}}</tool_call>\n{TIME}'),
    (HERMES, f'<tool_call> {{"arguments": {TEXT}, "name": "add"}} </tool_call>{TIME}'),
    (HERMES, f'<tool_call>{{"name": "add", "arguments": {TEXT}}}\n{TIME}'),
    (LLAMA3, f'{{"name": "add", "parameters": {TEXT}}}; {{"name": "get_time", "parameters": {{}}}}'),
    (LLAMA3, f'<|python_tag|>{{"name": "add", "parameters": {TEXT}}};{{"name": "get_time"}}'),
    (MISTRAL, f'[TOOL_CALLS] [{{"name": "add", "arguments": {TEXT}, "id": "x"}}, {{"name": "get_time"}}]'),
    (MISTRAL, f'[TOOL_CALLS][{{"name":"add","arguments":{TEXT}}},{{"name":"get_time","arguments":{{}}}}]'),
    (MISTRAL, f"[TOOL_CALLS]add[ARGS]{TEXT}[TOOL_CALLS]get_time[CALL_ID]abc[ARGS]{{}}"),
]


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize(("form", "text"), FORMS)
def test_every_form_gives_the_same_calls_wherever_it_is_cut(form: ToolFormat, text: str, growing: bool) -> None:
    reading = replace(OFFERED, tools=form, growing=growing)
    for seed in range(12):
        shown, calls, reader = read(text, Random(seed) if seed else None, reading)
        assert grown(calls) == [(0, "add", ARGUMENTS), (1, "get_time", {})]
        assert (shown, reader.count) == ("", 2)
        assert growing or not any(call.later for call in calls)


@pytest.mark.parametrize("form", [HERMES, LLAMA3, MISTRAL])
def test_what_a_form_says_of_itself_is_read(form: ToolFormat) -> None:
    """A grammar writes calls with these properties."""
    text = form.opening + form.call("add") + TEXT + "}" + form.closing
    assert grown(read(text, None, replace(OFFERED, tools=form))[1]) == [(0, "add", ARGUMENTS)]


def test_arguments_grow_in_a_stream_behind_the_name() -> None:
    reads, _ = reads_of(ADD, replace(OFFERED, growing=True))
    calls = [call for one in reads for call in one.calls]
    assert (calls[0].name, calls[0].later) == ("add", False)
    assert all(call.later and call.id == calls[0].id for call in calls[1:])
    assert len(calls) > 20  # a piece for each letter of the arguments


@pytest.mark.parametrize(
    "text",
    [
        "a < b, <tool> and </tool_call>",
        "<tool_call>no json</tool_call> after",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "add", "name": "add"}</tool_call>',
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>["add"]</tool_call>',
        '<tool_call>{"name": "add", "argum',
        '<tool_call>{"name": "add", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\n"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": "\\x"}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": ' + '{"a": ' * 500,
        "ends with the beginning of a mark <tool_c",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    for seed in range(8):
        shown, calls, reader = read(text, Random(seed) if seed else None)
        assert (shown, calls, reader.count) == (text, [], 0)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (LLAMA3, '{"answer": 42} is JSON, and no call'),
        (LLAMA3, '  {"name": "strange", "parameters": {}}'),
        (LLAMA3, 'Sure: {"name": "add", "parameters": {}}'),
        (MISTRAL, "[TOOL_CALLS] I would rather not."),
        (MISTRAL, "[TOOL_CALLS] [1, 2]"),
        (MISTRAL, "[TOOL_CALLS]strange[ARGS]{}"),
        (MISTRAL, "[TOOL_CALLS]" + "a" * 500),
    ],
)
def test_what_is_no_call_in_another_form_stays_text(form: ToolFormat, text: str) -> None:
    for growing in (False, True):
        shown, calls, _ = read(text, Random(3), replace(OFFERED, tools=form, growing=growing))
        assert (shown, calls) == (text, [])


def test_a_call_that_breaks_after_it_has_left_goes_on_as_text() -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, oops}}</tool_call> and more'
    shown, calls, reader = read(text, None, replace(OFFERED, growing=True))
    assert "".join(call.arguments for call in calls) + shown == '{"a": 1, oops}}</tool_call> and more'
    assert (reader.called, reader.count) == (True, 0)


@pytest.mark.parametrize(
    ("form", "behind", "shown"),
    [
        (HERMES, ', oops}}</tool_call> and "more"', ', oops}}</tool_call> and "more"'),
        (HERMES, "\n</tool_call>\nSo.", "So."),  # only the brace is missing
        (HERMES, ', "id": "a", "arguments": {}}</tool_call>!', ', "id": "a", "arguments": {}}</tool_call>!'),
        (HERMES, ', "name": "get_time"}', ', "name": "get_time"}'),
        (HERMES, ', "x": "ends here', ', "x": "ends here'),
        (HERMES, "", ""),
        (HERMES, "  ", ""),
        (LLAMA3, " I mean.", "I mean."),
        (LLAMA3, ', "id": 01}; x', ', "id": 01}; x'),
        (MISTRAL, ", 1]", ", 1]"),
    ],
)
@pytest.mark.parametrize("growing", [False, True])
def test_a_call_that_breaks_behind_its_arguments_is_one_and_the_rest_is_text(
    form: ToolFormat, behind: str, shown: str, growing: bool
) -> None:
    key, reading = form.arguments_key, replace(OFFERED, tools=form, growing=growing)
    for fields in (f'"name": "add", "{key}": {TEXT}', f'"{key}": {TEXT}, "name": "add"'):
        text = ("" if form.bare else form.begin) + "{" + fields + behind
        for seed in range(6):
            found, calls, reader = read(text, Random(seed) if seed else None, reading)
            assert (found, grown(calls), reader.count) == (shown, [(0, "add", ARGUMENTS)], 1), (seed, text)


def test_calls_behind_one_that_breaks_behind_its_arguments_are_read() -> None:
    text = f'<tool_call>{{"name": "add", "arguments": {TEXT}, oops}}</tool_call>{TIME}'
    for growing in (False, True):
        _, calls, _ = read(text, Random(1), replace(OFFERED, growing=growing))
        assert grown(calls) == [(0, "add", ARGUMENTS), (1, "get_time", {})]


def test_a_call_behind_a_broken_one_is_read() -> None:
    assert grown(read(f"<tool_call><tool_call>{TIME}", Random(1))[1]) == [(0, "get_time", {})]


def test_without_tools_nothing_is_held_back() -> None:
    reader = AnswerReader(NO_TOOLS)
    (piece,) = pieces(TIME[:1])
    assert reader.push(piece).piece is piece


def test_tokens_of_a_call_leave_when_it_is_whole() -> None:
    reader = AnswerReader(OFFERED)
    cut = pieces(TIME)
    done = [number for number, piece in enumerate(cut) if reader.push(piece).calls]
    assert done == [TIME.rindex("}")]


def test_an_answer_that_is_continued_goes_on_counting_with_the_same_ids() -> None:
    _, whole, _ = read(f"{ADD}\n{TIME}")
    reader = AnswerReader(OFFERED, request_id="r1", before=ADD)
    assert reader.count == 1
    rest = [call for piece in pieces(f"\n{TIME}") for call in reader.push(piece).calls]
    assert rest == whole[1:]


def test_ids_of_mistral_have_nine_letters_and_digits() -> None:
    _, calls, _ = read("[TOOL_CALLS]add[ARGS]{}[TOOL_CALLS]add[ARGS]{}", None, replace(OFFERED, tools=MISTRAL))
    ids = {call.id for call in calls}
    assert len(ids) == 2 and all(len(id) == 9 and id.isalnum() for id in ids)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("reading", "text", "reasoning", "shown"),
    [
        (AnswerFormat(reasoning=THINK), "<think>\nHm <b> no.\n</think>\n\nYes.", "Hm <b> no.", "Yes."),
        (AnswerFormat(reasoning=THINK), "\n<think></think>Yes.", "", "Yes."),
        (AnswerFormat(reasoning=THINK), "Yes <think>no</think>.", "", "Yes <think>no</think>."),
        (AnswerFormat(reasoning=THINK), "<thin", "", "<thin"),
        (AnswerFormat(reasoning=THINK), "<think>cut off </thin", "cut off </thin", ""),
        (AnswerFormat(reasoning=THINK, reasoning_begun=True), "Hm.\n\n</think>\nYes.", "Hm.", "Yes."),
        (AnswerFormat(reasoning=THINK, reasoning_begun=True), "Hm.", "Hm.", ""),
        (AnswerFormat(reasoning=MISTRAL_THINK), "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        (replace(OFFERED, reasoning=THINK), f"<think>{TIME}</think>\n{TIME}", TIME, ""),
        (replace(OFFERED, reasoning=THINK, tools=LLAMA3), '<think>x</think>\n{"name": "get_time"}', "x", ""),
    ],
)
def test_reasoning_is_told_from_the_answer(
    reading: AnswerFormat, text: str, reasoning: str, shown: str, seed: int
) -> None:
    reads, reader = reads_of(text, reading, Random(seed) if seed else None)
    assert "".join(one.reasoning for one in reads) == reasoning
    assert "".join(one.piece.text for one in reads) == shown
    assert reader.count == len(reading.use.tools[:1])
    if not seed and (end := text.find("</think>")) > 0 and not text.startswith("Yes"):
        assert reader.reasoning_tokens == end + len("</think>")


@pytest.mark.parametrize(
    "text", ["<tool_call>" * 3000, '<tool_call>{"name": "' * 3000, '<tool_call>{"a": ' * 3000, "<" * 20_000]
)
def test_text_that_is_all_beginnings_of_calls_stays_text(text: str) -> None:
    shown, calls, _ = read(text)
    assert (shown, calls) == (text, [])
