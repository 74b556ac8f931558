"""`baton replay` compares two receipts: it names each difference, and the first token that is another."""

from typing import Any

import msgspec
import pytest

from cli.receipts.compare import compare, first_other
from gateway.receipts.shape import ReceiptChoice, ReceiptNumerics
from tests.unit.cli.signed_receipts import CLASS, choice_of, receipt_of

# ---- what differs


def test_equal_receipts_have_no_difference() -> None:
    assert compare(receipt_of(), 0, receipt_of()) == []


@pytest.mark.parametrize(
    ("other", "what", "words"),
    [
        ({"name": CLASS.replace("aaaa", "bbbb")}, "model_hash", "aaaa in the receipt, bbbb here"),
        ({"name": CLASS.replace("pairs", "amx")}, "class", "path=pairs in the receipt, path=amx here"),
        ({"seed": 6}, "seed", "5 in the receipt, 6 here"),
        ({"temperature": "1.0"}, "parameter", "temperature: 0.7 in the receipt, 1.0 here"),
        ({"stop": "ab"}, "parameter", "stop: none in the receipt, set here"),
        ({"eos_token_ids": "ee"}, "parameter", "eos_token_ids: its hash is another"),
        ({"further": 1}, "parameter", "further: None in the receipt, 1 here"),
    ],
)
def test_each_difference_is_named_with_both_values(other: Any, what: str, words: str) -> None:
    (found,) = compare(receipt_of(), 0, receipt_of(**other))
    assert found.what == what and words in found.text


def test_a_fingerprint_counts_where_the_class_has_the_same_name() -> None:
    other = msgspec.structs.replace(receipt_of(), numerics=[ReceiptNumerics(CLASS, "cafe")])
    (found,) = compare(receipt_of(), 0, other)
    assert found.what == "fingerprint" and "f00d in the receipt, cafe here" in found.text


def test_another_prompt_comes_before_the_tokens_that_follow_from_it() -> None:
    found = compare(receipt_of(([1, 2], [[7]])), 0, receipt_of(([1, 2, 3], [[7]])))
    assert [each.what for each in found] == ["prompt", "tokens"] and "2 tokens in the receipt, 3 here" in found[0].text
    (first, _) = compare(receipt_of(([1, 2], [[7]])), 0, receipt_of(([1, 3], [[7]])))
    assert "2 tokens, but others" in first.text


def test_another_number_of_choices_is_a_difference() -> None:
    (found,) = compare(receipt_of(([1], [[7], [8]])), 0, receipt_of(([1], [[7]])))
    assert found.what == "choices"


def test_the_second_choice_is_compared_too() -> None:
    (found,) = compare(receipt_of(([1], [[7], [8, 9]])), 0, receipt_of(([1], [[7], [8, 10]])))
    assert (found.what, found.choice, found.positions) == ("tokens", 1, (1, 1)) and "token 1 is another" in found.text


def positions(old: list[int], new: list[int], marks: tuple[int, int] = (1024, 1024)) -> tuple[int, int]:
    choices = [
        msgspec.convert(choice_of(tokens, prompt=[1], marks=most), ReceiptChoice)
        for tokens, most in zip((old, new), marks, strict=True)
    ]
    return first_other(*choices)


def test_the_first_other_token_is_found_exactly_in_short_answers() -> None:
    base = list(range(100))
    for at in (0, 1, 50, 98, 99):
        assert positions(base, [*base[:at], 777, *base[at + 1 :]]) == (at, at)
    assert positions(base, base[:60]) == positions(base[:60], base) == (60, 60)
    assert positions([], [1]) == (0, 0)


@pytest.mark.parametrize("marks", [(16, 16), (16, 1024), (1, 16), (1, 1)])
def test_in_long_answers_the_other_token_lies_in_the_named_span(marks: tuple[int, int]) -> None:
    base = list(range(1000))
    for at in (0, 5, 63, 64, 500, 998, 999):
        first, last = positions(base, [*base[:at], 777, *base[at + 1 :]], marks)
        assert first <= at <= last < 1000 and last - first < 1000 // min(marks) * 2
    first, last = positions(base, base[:70], marks)
    assert first <= 70 <= last


def test_marks_that_make_no_sense_end_in_some_answer() -> None:
    old = msgspec.convert(choice_of([1, 2, 3], prompt=[1]), ReceiptChoice)
    for every, marks in ((1, ""), (3, "ab"), (10**12, "zz" * 50), (7, "é" * 9)):
        first, last = first_other(old, msgspec.structs.replace(old, hash="0", marks_every=every, marks=marks))
        assert 0 <= first <= last
