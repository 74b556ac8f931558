"""Calls are read from text however it is cut, and whatever is no call stays text."""

import json
from random import Random

import pytest

from gateway.text.stops import TextPiece
from gateway.text.tool_calls import ToolCall, ToolCallReader
from mesh.messages import End, Token

NAMES = frozenset({"add", "get_time"})
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "zwei"}}\n</tool_call>'
TIME = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'


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


def read(
    text: str, rng: Random | None = None, names: frozenset[str] = NAMES
) -> tuple[str, list[ToolCall], ToolCallReader]:
    reader = ToolCallReader(names, request_id="r1")
    cut = pieces(text, rng)
    reads = [*map(reader.push, cut), reader.flush()]
    assert [token.position for one in reads for token in one.piece.tokens] == list(range(len(cut)))
    return "".join(one.piece.text for one in reads), [call for one in reads for call in one.calls], reader


@pytest.mark.parametrize("seed", range(20))
def test_calls_are_the_same_wherever_the_text_is_cut(seed: int) -> None:
    text, calls, _ = read(f"Let me see.\n{ADD}\n{TIME}", Random(seed) if seed else None)
    assert text == "Let me see.\n"
    assert [(call.index, call.name, json.loads(call.arguments)) for call in calls] == [
        (0, "add", {"a": 1, "b": "zwei"}),
        (1, "get_time", {}),
    ]
    assert len({call.id for call in calls}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "a < b, <tool> and </tool_call>",
        "<tool_call>no json</tool_call> after",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "add", "arguments": [1]}</tool_call>',
        '<tool_call>["add"]</tool_call>',
        '<tool_call>{"name": "add", "argum',
        "ends with the beginning of a mark <tool_c",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    shown, calls, reader = read(text)
    assert (shown, calls, reader.count) == (text, [], 0)


def test_without_tools_nothing_is_held_back() -> None:
    reader = ToolCallReader(frozenset())
    (piece,) = pieces(TIME[:1])
    assert reader.push(piece).piece is piece


def test_tokens_of_a_call_leave_when_it_is_whole() -> None:
    reader = ToolCallReader(NAMES)
    *before, last = pieces(TIME)
    assert not any(reader.push(piece).piece.tokens for piece in before)
    done = reader.push(last)
    assert len(done.piece.tokens) == len(TIME) and done.piece.text == "" and len(done.calls) == 1


def test_an_answer_that_is_continued_goes_on_counting_with_the_same_ids() -> None:
    _, whole, _ = read(f"{ADD}\n{TIME}")
    reader = ToolCallReader(NAMES, request_id="r1", before=ADD)
    assert reader.count == 1
    rest = [call for piece in pieces(f"\n{TIME}") for call in reader.push(piece).calls]
    assert rest == whole[1:]
