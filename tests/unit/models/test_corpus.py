"""What the model learns from: everything held out stays out, in every template, and every answer is right."""

import itertools
import json
import re

import pytest

from models.about import BATON
from models.arithmetic import held_pairs, pair_is_held
from models.corpus import FIRST, GENERATORS, LATER, talks, texts
from models.questions import NAMED
from models.schemas import fits
from models.talk import Kind, Split, Talk
from models.wordings import HELD_WORDINGS, plain

_EQUATION = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)")
_ADDITION = re.compile(r"(?<!\d)(\d+) ?(?:\+|plus) ?(\d+)(?!\d)")
_ADD_WORDS = re.compile(r"(?:[Aa]dd|sum of) (\d+) (?:and|to) (\d+)")


def drawn(kind: Kind, count: int, part: Split = Split.TRAINED, seed: int = 5) -> list[Talk]:
    return list(itertools.islice(talks(seed, part, kind), count))


def pairs_in(text: str) -> set[tuple[int, int]]:
    """Every addition that a text states or gives away."""
    found = {(int(a), int(b)) for a, b in _ADDITION.findall(text) + _ADD_WORDS.findall(text)}
    for a, sign, b, result in _EQUATION.findall(text):
        if sign == "-":
            found.add((int(b), int(result)))
        elif sign == "+":
            found.add((int(a), int(b)))
    return found


def whole(talk: Talk) -> str:
    called = json.dumps([call.arguments for turn in talk.turns for call in turn.calls])
    return "\n".join([*(turn.content for turn in talk.turns), called])


def test_no_held_addition_is_trained_in_any_template() -> None:
    seen: set[tuple[int, int]] = set()
    for text in itertools.islice(texts(11, FIRST), 4500):
        seen |= pairs_in(text)
    assert len(seen) > 3000
    assert not {pair for pair in seen if pair_is_held(*pair)}


def test_the_search_for_held_additions_would_find_one() -> None:
    held = drawn(Kind.ARITHMETIC, 200, Split.HELD)
    assert all(any(pair_is_held(*pair) for pair in pairs_in(talk.turns[0].content)) for talk in held)


def test_held_pairs_are_a_tenth_unordered_and_never_two_digits_alone() -> None:
    pairs = held_pairs()
    assert 0.08 < len(pairs) / 5050 < 0.12
    assert all(pair_is_held(b, a) and b >= 10 for a, b in pairs)


def test_every_equation_is_right() -> None:
    checked = 0
    for kind in (Kind.ARITHMETIC, Kind.CHAT, Kind.TOOLS):
        for talk in drawn(kind, 400):
            for a, sign, b, result in _EQUATION.findall(whole(talk)):
                wanted = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
                assert int(result) == wanted
                checked += 1
    assert checked > 800


def test_held_wordings_are_never_trained_however_they_are_spelled() -> None:
    held = {plain(wording) for wording in HELD_WORDINGS}
    asked = {plain(turn.content) for talk in drawn(Kind.EXPLAIN, 5000) for turn in talk.turns if turn.role == "user"}
    asked |= {plain(turn.content) for talk in drawn(Kind.CHAT, 1500) for turn in talk.turns if turn.role == "user"}
    assert "what is baton" in asked
    assert not asked & held


def test_both_answers_to_the_demo_question_name_all_four_parts() -> None:
    for answer in (BATON.answer, BATON.short):
        assert all(word in answer.lower() for word in NAMED)


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_what_is_asked_in_the_held_part_is_not_asked_in_the_trained_part(kind: Kind) -> None:
    held = {talk.asked() for talk in drawn(kind, 40, Split.HELD)}
    trained = {talk.asked() for talk in drawn(kind, 1500)}
    assert held and not held & trained


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
def test_a_talk_ends_with_an_answer(kind: Kind) -> None:
    for talk in drawn(kind, 200):
        assert talk.kind is kind
        assert talk.turns[-1].role == "assistant" and (talk.turns[-1].content or talk.turns[-1].calls)


def test_objects_fit_their_schemas() -> None:
    for talk in drawn(Kind.JSON, 500):
        assert fits(json.loads(talk.turns[1].content), talk.about["schema"]), talk


def test_calls_name_an_offered_tool_and_fit_its_parameters() -> None:
    calls = 0
    for talk in drawn(Kind.TOOLS, 300):
        offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in talk.tools}
        for turn in talk.turns:
            for call in turn.calls:
                assert fits(call.arguments, offered[call.name]), talk
                calls += 1
    assert calls > 200


def test_equal_seeds_give_equal_corpora_and_others_do_not() -> None:
    first, same, other = (list(itertools.islice(texts(seed), 50)) for seed in (1, 1, 2))
    assert first == same != other


def test_every_kind_has_a_share() -> None:
    for mix in (FIRST, LATER):
        assert mix.shares.keys() == GENERATORS.keys() == set(Kind)
        assert sum(mix.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("value", "schema", "good"),
    [
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, True),
        ({"a": True}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
        ({}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
        ({"a": 1, "b": 2}, {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, False),
        (7, {"type": "integer", "minimum": 8, "maximum": 9}, False),
        ("red", {"type": "string", "enum": ["blue"]}, False),
        (["x", 1], {"type": "array", "items": {"type": "string"}}, False),
    ],
)
def test_a_value_fits_its_schema_or_not(value: object, schema: dict[str, object], good: bool) -> None:
    assert fits(value, schema) is good
