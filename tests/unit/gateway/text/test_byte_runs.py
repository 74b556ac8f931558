"""Runs of byte tokens have the text of the tokenizer's own decode, at once and token by token, wherever a stream is
cut."""

import random

import pytest

from gateway.text.byte_runs import MOST_HELD
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer
from tests.unit.gateway.text.test_tokenizer import sentencepiece_like

RAW = sentencepiece_like()
TOKENS = ModelTokenizer(RAW)
VOCABULARY = RAW.get_vocab_size(with_added_tokens=True)
CHARACTERS = ("é", "漢", "😀", "a", " ", "\ufffd")


def run(data: bytes) -> list[int]:
    return [3 + byte for byte in data]


def mixed(random: random.Random) -> list[int]:
    """Characters as bytes, stray bytes, words, special tokens, and ids that no token has."""
    ids = list[int]()
    while len(ids) < random.randint(1, 40):
        kind = random.random()
        if kind < 0.4:
            ids += run(random.choice(CHARACTERS).encode())
        elif kind < 0.6:
            ids += run(random.randbytes(1))
        elif kind < 0.7:
            ids.append(random.choice((0, 1, 2, VOCABULARY + 5)))
        else:
            ids.append(random.randrange(259, VOCABULARY))
    return ids


def pieces(ids: list[int], emitted: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(TOKENS, (1,), emitted or ())
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.parametrize("seed", range(8))
def test_any_ids_have_the_text_of_the_tokenizers_own_decode(seed: int) -> None:
    drawn = random.Random(seed)
    for _ in range(300):
        ids = mixed(drawn)
        theirs = RAW.decode(ids, skip_special_tokens=True)
        parts, cut = pieces(ids), drawn.randint(0, len(ids))
        assert TOKENS.decode(ids) == theirs == "".join(parts), ids
        assert "".join(pieces(ids[cut:], ids[:cut])) == "".join(parts[cut:]), (ids, cut)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xe6\xbc\xa2", "漢"),
        (b"\xe6\xbc", "\ufffd" * 2),
        (b"\xc3\xa9\xff", "\ufffd" * 3),  # not even the character in front of the stray byte is text
        (b"\xff\xc3\xa9", "\ufffd" * 3),
        (b"\xf0\x9f\x98\x80\xf0\x9f", "\ufffd" * 6),
        (b"\xed\xa0\x80", "\ufffd" * 3),  # half of a surrogate pair
        (b"\xc0\x80", "\ufffd" * 2),  # longer than it may be
        (b" a", "a"),  # the text's first space
    ],
)
def test_a_run_is_text_as_a_whole_or_not_at_all(data: bytes, text: str) -> None:
    assert "".join(pieces(run(data))) == TOKENS.decode(run(data)) == RAW.decode(run(data)) == text


def test_a_run_waits_until_it_ends_and_no_longer_than_it_can_be_text() -> None:
    a = RAW.token_to_id("a")
    assert pieces([*run("é漢".encode()), a]) == ["", "", "", "", "", "é漢a", ""]
    assert pieces([*run(b"\xc3\xff\xc3"), a]) == ["", "\ufffd" * 2, "\ufffd", "a", ""]


def test_of_a_long_run_characters_leave_before_its_end() -> None:
    ids = run(("漢" * 40).encode())
    parts = pieces(ids)
    assert "".join(parts) == "漢" * 40
    assert parts[MOST_HELD - 1] == "漢" * (MOST_HELD // 3)


def test_a_run_that_begins_in_the_prompt_goes_on() -> None:
    def behind(prompt: bytes, answer: bytes) -> str:
        detokenizer = Detokenizer(TOKENS, (1, *run(prompt)))
        return "".join([*map(detokenizer.push, run(answer)), detokenizer.flush()])

    assert behind(b"\xe6\xbc", b"\xa2!") == "漢!"
    assert behind(b"\xe6\xbc", b"a") == "\ufffd"
    assert behind(b"\xff", b"a") == "\ufffd"
    assert behind("é".encode(), b"a") == "a"
