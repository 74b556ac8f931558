"""Joined pieces are the whole text, for any ids, in tokenizers of three kinds; and nothing of the prompt is in them."""

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import Unigram, WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer, Metaspace

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer
from tests.unit.gateway.byte_model import byte_tokenizer
from tests.unit.gateway.text.test_tokenizer import sentencepiece_like


def word_piece() -> Tokenizer:
    words = ["[UNK]", *"abc.,'", "##a", "##b", "##c", "don", "do", "the", "##é", "n't", "漢"]
    tokenizer = Tokenizer(WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = BertPreTokenizer(), WordPieceDecoder(cleanup=False)
    tokenizer.add_special_tokens([AddedToken("[SEP]", special=True, normalized=False)])
    return tokenizer


def metaspace() -> Tokenizer:
    pieces = ["<unk>", "▁", "▁a", "▁the", "▁▁", "a", "b", "é", "漢"]
    tokenizer = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer, tokenizer.decoder = Metaspace(), MetaspaceDecoder()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return tokenizer


RAW = [byte_tokenizer(), sentencepiece_like(), word_piece(), metaspace()]
KINDS = [ModelTokenizer(tokenizer) for tokenizer in RAW]


def ids_of(kind: int, numbers: list[int]) -> list[int]:
    return [number % RAW[kind].get_vocab_size(with_added_tokens=True) for number in numbers]


def pieces_of(tokens: ModelTokenizer, prompt: Any, ids: Any, emitted: Any = ()) -> list[str]:
    detokenizer = Detokenizer(tokens, prompt, emitted)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


NUMBERS = st.lists(st.one_of(st.integers(0, 400), st.sampled_from([0xC3, 0xA9, 0xE6, 0xBC, 0xA2, 32])), max_size=40)


@settings(max_examples=400)
@given(st.integers(0, 3), NUMBERS)
@example(0, [0xE6, 257, 0xBC, 0xA2])
@example(1, [3 + 0xE6, 3 + 0xBC, 3 + 0xA2, 3 + 0xFF])
@example(0, [0xFF] * 80 + [0xE6] * 70 + [0xBC, 0xA2])
def test_joined_pieces_are_the_full_decode_of_any_ids(kind: int, numbers: list[int]) -> None:
    ids = ids_of(kind, numbers)
    assert "".join(pieces_of(KINDS[kind], (), ids)) == KINDS[kind].decode(ids)


def is_byte(kind: int, ids: list[int], at: int) -> bool:
    """Whether the token there stands for a byte, which a decoder reads together with the bytes beside it."""
    return bool(ids) and str(RAW[kind].id_to_token(ids[at])).startswith("<0x")


@settings(max_examples=400)
@given(st.integers(0, 3), NUMBERS, NUMBERS)
@example(1, [3 + 0x20], [3 + 0x80])
def test_behind_a_prompt_the_pieces_are_what_the_answer_adds(kind: int, before: list[int], numbers: list[int]) -> None:
    """A wrong byte makes a decoder replace the whole run of bytes that it is in, those of the prompt included: where
    both meet within such a run, what is added has no measure."""
    prompt, ids = ids_of(kind, before), ids_of(kind, numbers)
    start, whole = KINDS[kind].decode(prompt), KINDS[kind].decode([*prompt, *ids])
    joined = "".join(pieces_of(KINDS[kind], prompt, ids))
    within = is_byte(kind, prompt, -1) and is_byte(kind, ids, 0)
    if not within and not start.endswith("\ufffd") and whole.startswith(start):
        assert joined == whole[len(start) :]
    assert whole.endswith(joined.lstrip("\ufffd"))


@settings(max_examples=200)
@given(st.integers(0, 3), NUMBERS)
@example(1, [3 + 0xE6, 3 + 0xBC, 3 + 0xA2, 3 + 0xFF])
@example(1, [3 + 0xC3, 3 + 0xA9, 3 + 0x20, 3 + 0xC3])
@example(1, [3 + 0x20, 3 + 0x41])
@example(1, [3 + 0xE6, 1, 3 + 0xBC, 3 + 0xA2])
def test_our_decode_is_the_librarys(kind: int, numbers: list[int]) -> None:
    ids = ids_of(kind, numbers)
    assert KINDS[kind].decode(ids) == RAW[kind].decode(ids, skip_special_tokens=True)


@settings(max_examples=200)
@given(st.integers(0, 1), NUMBERS, st.integers(0, 40))
def test_a_continued_answer_goes_on_where_it_was(kind: int, numbers: list[int], cut: int) -> None:
    prompt, ids = ids_of(kind, [100, 101]), ids_of(kind, numbers)
    parts = pieces_of(KINDS[kind], prompt, ids)
    assert "".join(pieces_of(KINDS[kind], prompt, ids[cut:], ids[:cut])) == "".join(parts[min(cut, len(ids)) :])


@pytest.mark.parametrize(("prompt", "answer"), [(b"\xe6", b"x"), (b"a\xf0\x9f", b" b"), (b"\xe6\xbc", b"")])
def test_half_a_character_of_the_prompt_leaves_no_trace(prompt: bytes, answer: bytes) -> None:
    assert "".join(pieces_of(KINDS[0], prompt, answer)) == answer.decode()


def test_a_character_that_the_answer_completes_is_whole() -> None:
    assert "".join(pieces_of(KINDS[0], b"\xe6\xbc", b"\xa2!")) == "漢!"
    assert "".join(pieces_of(KINDS[0], b"\xef\xbf", b"\xbd!")) == "\ufffd!"


def test_tokens_of_logprobs_keep_their_leading_spaces() -> None:
    sentences, words = KINDS[1], KINDS[2]
    the = RAW[1].token_to_id("▁the")
    assert (sentences.token_text(the), sentences.token_bytes(the)) == (" the", b" the")
    assert sentences.token_bytes(3 + 0xC3) == b"\xc3"
    assert [words.token_text(RAW[2].token_to_id(word)) for word in ("the", "##b")] == [" the", "b"]


def test_marks_that_are_special_tokens_can_be_shown() -> None:
    shown = KINDS[0].ids_of(["<|end|>", "unknown"])
    detokenizer = Detokenizer(KINDS[0], b"hi", shown=shown)
    assert [detokenizer.push(token) for token in (97, 257, 258, 98)] == ["a", "<|end|>", "", "b"]
    assert KINDS[0].decode((97, 257, 258), shown=shown) == "a<|end|>"
