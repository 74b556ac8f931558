"""The gateway reads large answers in small steps; their digests are those of a reader who has the whole at once."""

import json
from typing import Any

import pytest

from gateway.receipts.answers.fields import MAX_FIELDS, SentAnswer, changes, covered
from gateway.receipts.answers.reading import LARGE_CHARACTERS, loads, loads_slowly
from gateway.receipts.canonical import ReceiptError
from gateway.receipts.shape import shaped
from tests.unit.cli.signed_receipts import KEY, raw_receipt

MANY = 800
TOP = [{"token": "b", "logprob": 1e-7}]
ENTRY = {"token": "a\u2028", "logprob": -0.5, "bytes": [97] * 100, "top_logprobs": TOP * 3}
COLUMNS = {"tokens": ["a"] * MANY, "token_logprobs": [-1.0] * MANY, "top_logprobs": [{"a": -1.5}] * MANY}
GROWN = {"text": "a" * MANY, "output_ids": [1] * MANY, "meta_info": {"output_top_logprobs": [[[-1.0, 1]]] * MANY}}
SCORED = {"message": {"content": "a"}, "logprobs": {"content": [ENTRY] * MANY}}
SPOKEN = {"type": "output_text", "text": "a", "logprobs": [ENTRY] * MANY}
LARGE: dict[str, Any] = {
    "chat": {"choices": [SCORED], "prompt_logprobs": [{}]},
    "completion": {"choices": [{"text": "a", "logprobs": COLUMNS, "token_ids": list(range(MANY))}] * 10},
    "response": {"output": [{"content": [SPOKEN]}], "text": {"e": [[1] * 99] * MANY}},
    "batch": [GROWN] * 12,
    "message": {"content": [{"type": "tool_use", "input": {"many": [{"a": [1] * 99}] * MANY}}]},
}


@pytest.mark.parametrize("kind", LARGE)
def test_both_ways_of_reading_give_the_same_digests(kind: str) -> None:
    for indent in (None, 1):
        text = json.dumps(LARGE[kind], indent=indent)
        assert len(text) > LARGE_CHARACTERS
        at_once, slowly = (covered(SentAnswer(load(text)), "5") for load in (loads, loads_slowly))
        assert at_once == slowly


def test_of_many_fields_a_receipt_names_larger_ones() -> None:
    choice = {"message": {"content": "a", "role": "b", "refusal": None}, "logprobs": {"content": []}}
    sent = {"choices": [{"index": index} | choice for index in range(1024)], "usage": {"prompt_tokens": 1}}
    record = covered(SentAnswer(sent), "5")
    assert len(record["fields"]) <= MAX_FIELDS
    plain = {name: value for name, value in raw_receipt().items() if name not in ("signature", "key")}
    read = shaped(KEY.signed(plain | {"answer": record})).answer
    assert read is not None and changes(read, SentAnswer(sent), "5") == []
    forged = loads(json.dumps(sent))
    forged["choices"][7]["message"]["content"] = "b"
    assert [each.text for each in changes(read, SentAnswer(forged), "5")] == ["choices[7].message was changed"]


SPELLED = [("1.0", "1"), ("1e2", "100"), ("-0.0", "0"), ("0.10", "1e-1")]
DISTINCT = [("0.1", "0.10000000000000002"), ("true", "1"), ("null", "0"), ('"1"', "1")]


@pytest.mark.parametrize(("one", "other"), SPELLED + DISTINCT)
def test_numbers_are_equal_however_they_are_spelled(one: str, other: str) -> None:
    records = [covered(SentAnswer(loads(f'{{"a": {each}}}')), "5") for each in (one, other)]
    assert (records[0] == records[1]) == ((one, other) in SPELLED)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": Infinity}', '{"a": 1, "a": 1}', "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ReceiptError):
        loads(text)
