"""The signed bytes of a receipt: one spelling for one meaning, and nothing that could be read in two ways."""

import json
from typing import Any

import pytest

from gateway.receipts.canonical import FORMAT, MAX_BYTES, MAX_FILE_BYTES, ReceiptError, canonical, read_receipt


def text_of(**more: Any) -> bytes:
    return json.dumps({"format": FORMAT, "seed": "18446744073709551615"} | more).encode()


def test_order_and_spaces_do_not_matter() -> None:
    one = read_receipt(b'{"format": "%b",\n "b": 1, "a": [true, null]}' % FORMAT.encode())
    other = read_receipt(b'{"a":[true,null],"b":1,"format":"%b"}' % FORMAT.encode())
    assert canonical(one) == canonical(other)
    assert canonical(one) == b'{"a":[true,null],"b":1,"format":"baton-receipt/1"}'


def test_the_signature_is_no_part_of_what_is_signed() -> None:
    assert canonical({"a": "x", "signature": "1"}) == canonical({"a": "x"}) == b'{"a":"x"}'


def test_texts_keep_every_character_and_stay_ascii() -> None:
    assert canonical({"a": "ü\u2028"}) == b'{"a":"\\u00fc\\u2028"}'
    assert canonical({"a": "e\u0301"}) != canonical({"a": "é"})


@pytest.mark.parametrize("value", ["1.0", "1e3", "-0.0", "NaN", "Infinity", "0.1"])
def test_a_fraction_is_refused_however_it_is_spelled(value: str) -> None:
    with pytest.raises(ReceiptError, match="fraction"):
        read_receipt(b'{"format": "%b", "a": %b}' % (FORMAT.encode(), value.encode()))


def test_whole_numbers_that_some_readers_round_are_refused() -> None:
    assert read_receipt(text_of(a=2**53 - 1))["a"] == 2**53 - 1
    for value in (2**53, -(2**53), 10**30):
        with pytest.raises(ReceiptError, match="written as a text"):
            read_receipt(text_of(a=value))


@pytest.mark.parametrize(
    "where", ['{"a": 1, "a": 2, %s}', '{"b": {"a": 1, "a": 1}, %s}', '{"b": [{"a": 1, "a": 1}], %s}']
)
def test_a_name_that_stands_twice_is_refused_at_any_depth(where: str) -> None:
    with pytest.raises(ReceiptError, match="twice"):
        read_receipt((where % f'"format": "{FORMAT}"').encode())


@pytest.mark.parametrize("name", ["", "A", "a b", "ä", "a" * 65, "__proto__"])
def test_names_are_plain(name: str) -> None:
    with pytest.raises(ReceiptError, match="names are"):
        read_receipt(text_of(**{name: 1}))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"format": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "no receipt"),
        (b"{}", "no receipt"),
        (b'{"format": "baton-receipt/2"}', "baton-receipt/2"),
        (b'{"format": 1}', "format is '1'"),
        (b'{"receipt": {"format": 2}}', "format is '2'"),
    ],
)
def test_what_is_no_receipt_is_refused_with_the_reason(raw: bytes, words: str) -> None:
    with pytest.raises(ReceiptError, match=words):
        read_receipt(raw)


def test_depth_and_size_are_bounded() -> None:
    deep: Any = 1
    for _ in range(9):
        deep = [deep]
    with pytest.raises(ReceiptError, match="nested deeper"):
        read_receipt(text_of(a=deep))
    with pytest.raises(ReceiptError, match="at most"):
        read_receipt(text_of(a="x" * MAX_BYTES))
    with pytest.raises(ReceiptError, match="at most"):
        read_receipt(b" " * (MAX_FILE_BYTES + 1))


def test_a_whole_answer_with_fractions_elsewhere_gives_its_receipt() -> None:
    answer = {"usage": {"a": 1}, "timings": {"total_seconds": 0.5}, "receipt": json.loads(text_of())}
    assert read_receipt(json.dumps(answer).encode()) == json.loads(text_of())
