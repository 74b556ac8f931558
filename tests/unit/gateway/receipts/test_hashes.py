"""Hashes of prompts and tokens: different for different ids, and with marks that find the first other token."""

from array import array

import pytest

from gateway.receipts.hashes import MARK_BYTES, digest, id_bytes, spacing, token_hashes

PROMPT = id_bytes([1, 2, 3])


def test_ids_are_four_bytes_each_little_endian() -> None:
    assert id_bytes([1, 2**32 - 1]) == b"\x01\0\0\0\xff\xff\xff\xff" == id_bytes(array("I", [1, 2**32 - 1]))
    assert id_bytes(()) == b""


def test_prompts_and_tokens_cannot_be_shifted_into_each_other() -> None:
    assert digest("prompt", PROMPT) != digest("tokens", PROMPT)
    one, other = token_hashes(id_bytes([1]), id_bytes([2, 3]), 8), token_hashes(id_bytes([1, 2]), id_bytes([3]), 8)
    assert one.whole != other.whole and one.marks[:4] != other.marks[:4]


def test_marks_are_equal_up_to_the_first_other_token() -> None:
    tokens = list(range(40))
    changed = [*tokens[:17], 999, *tokens[18:]]
    one, other = (token_hashes(PROMPT, id_bytes(ids), 64) for ids in (tokens, changed))
    size = 2 * MARK_BYTES
    assert one.every == 1 and len(one.marks) == 40 * size
    assert one.marks[: 17 * size] == other.marks[: 17 * size]
    assert one.marks[17 * size : 18 * size] != other.marks[17 * size : 18 * size]
    assert one.whole != other.whole


def test_tokens_behind_the_last_mark_count_in_the_whole_hash() -> None:
    one, other = (token_hashes(PROMPT, id_bytes([*range(9), last]), 4) for last in (0, 1))
    assert one.every == 4 and one.marks == other.marks and one.whole != other.whole


@pytest.mark.parametrize("tokens", [0, 1, 3, 4, 5, 1023, 1024, 1025, 131_072])
@pytest.mark.parametrize("marks", [1, 4, 1024])
def test_marks_are_few_and_as_close_as_that_allows(tokens: int, marks: int) -> None:
    every = spacing(tokens, marks)
    assert every & (every - 1) == 0 and tokens // every <= marks
    assert every == 1 or tokens // (every // 2) > marks
