"""Streamed text is exactly the text of the tokens: no half characters, nothing of the prompt, nothing lost."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend
from tokenizers.normalizers import Replace as ReplaceText
from tokenizers.normalizers import Sequence as Normalizers

from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer


def sentencepiece_like() -> Tokenizer:
    """A tokenizer like that of Llama 2: words begin with ▁, unknown characters fall back to bytes, the first space is
    stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz", "é", "▁a", "▁th", "▁the", "th", "he", "in"]
    merges = [("▁", "a"), ("t", "h"), ("▁", "th"), ("▁th", "e"), ("h", "e"), ("i", "n")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = Normalizers([Prepend("▁"), ReplaceText(" ", "▁")])
    tokenizer.decoder = Sequence([Replace("▁", " "), ByteFallback(), Fuse(), Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in ("<s>", "</s>")])
    return tokenizer


SENTENCES = ModelTokenizer(sentencepiece_like())


def streamed(tokens: ModelTokenizer, prompt: Any, ids: Any, emitted: Any = ()) -> list[str]:
    detokenizer = Detokenizer(tokens, prompt, emitted)
    return [*(detokenizer.push(token) for token in ids), detokenizer.flush()]


@pytest.fixture
def tokens(tokenizer: Tokenizer) -> ModelTokenizer:
    return ModelTokenizer(tokenizer)


TEXTS = st.text(st.sampled_from("ab é漢字😀🏳️‍🌈\u200d\n\ufffd"), max_size=30)


@settings(max_examples=150, deadline=None)
@given(TEXTS)
def test_no_text_is_longer_than_its_tokens_could_make_it(text: str) -> None:
    assert len(text) <= SENTENCES.most_characters(len(SENTENCES.encode(text, special=False)))


@settings(max_examples=150, deadline=None)
@given(TEXTS, TEXTS)
def test_streamed_bytes_are_the_text(prompt: str, answer: str) -> None:
    from tokenizers.decoders import ByteLevel as Decoder
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = Decoder()
    tokens = ModelTokenizer(tokenizer)
    parts = streamed(tokens, tokens.encode(prompt, special=False), tokens.encode(answer, special=False))
    assert "".join(parts) == answer


@settings(max_examples=150, deadline=None)
@given(st.text("abthein é漢😀", max_size=20), st.text("abthein é漢😀", max_size=30))
@example("the", "漢漢漢漢漢漢漢漢漢漢")
@example("漢漢漢漢漢漢", "the the")
@example("", " a")
def test_streamed_pieces_and_fallback_bytes_are_the_text(prompt: str, answer: str) -> None:
    before = SENTENCES.encode(prompt, special=False) or (1,)
    ids = SENTENCES.encode(answer, special=False)
    whole = SENTENCES.decode((*before, *ids))
    parts = streamed(SENTENCES, before, ids)
    assert SENTENCES.decode(before) + "".join(parts) == whole


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=32), st.integers(0, 32))
@example(b" ", 0)
def test_bytes_that_are_no_text_are_all_accounted_for(raw: bytes, cut: int) -> None:
    """Any ids, split anywhere into prompt, emitted and new: nothing is lost, and pieces are never taken back."""
    ids = tuple(byte + 3 for byte in raw)  # <0x00> is the third piece
    word = SENTENCES.encode("the", special=False)
    parts = streamed(SENTENCES, word, ids)
    text = "".join(parts)
    assert len(text.encode()) >= len(raw.decode("utf-8", "ignore").encode())
    again = streamed(SENTENCES, word, ids[cut:], ids[:cut])
    assert "".join(again) == "".join(parts[min(cut, len(ids)) :])


def test_a_character_spread_over_tokens_comes_out_whole(tokens: ModelTokenizer) -> None:
    assert streamed(tokens, b"hi", "a😀b".encode()) == ["a", "", "", "", "😀", "b", ""]


def test_a_half_character_at_the_end_is_flushed(tokens: ModelTokenizer) -> None:
    assert streamed(tokens, b"hi", "a😀".encode()[:3]) == ["a", "", "", "\ufffd"]


def test_the_answer_may_complete_the_prompts_last_character(tokens: ModelTokenizer) -> None:
    prompt, answer = "hé".encode()[:2], "hé!".encode()[2:]
    assert "".join(streamed(tokens, prompt, answer)) == "é!"


@pytest.mark.parametrize("prompt", ["long prompt 漢".encode()[:-1], b"\xff" * 40, b"x" * 40 + b"\xe6\xbc"])
def test_a_prompt_that_ends_in_half_a_character_is_never_replayed(tokens: ModelTokenizer, prompt: bytes) -> None:
    text = "".join(streamed(tokens, prompt, b" answer"))
    assert text.lstrip("\ufffd") == " answer"
    assert len(text) <= len(" answer") + 1


def test_garbage_does_not_hold_the_text_back_for_ever(tokens: ModelTokenizer) -> None:
    parts = streamed(tokens, b"hi", b"\xff" * 200)
    assert "".join(parts) == "\ufffd" * 200
    longest = max(len(piece) for piece in parts)
    assert longest <= 4


def test_special_tokens_have_no_text_unless_asked(tokens: ModelTokenizer) -> None:
    assert "".join(streamed(tokens, b"hi", [97, 258, 98])) == "ab"
    shown = Detokenizer(tokens, b"hi", skip_special=False)
    assert "".join(shown.push(token) for token in (97, 258, 98)) == "a<|user|>b"


def test_a_token_has_its_bytes_also_in_the_middle_of_a_character(tokens: ModelTokenizer) -> None:
    assert [tokens.token_bytes(byte) for byte in "é".encode()] == [b"\xc3", b"\xa9"]
    assert tokens.token_bytes(258) == b"<|user|>"
    assert SENTENCES.token_bytes(0xC3 + 3) == b"\xc3"


def test_the_fallback_vocabulary_of_this_test_is_as_assumed() -> None:
    vocabulary = json.loads(sentencepiece_like().to_str())["model"]["vocab"]
    assert vocabulary["<0x00>"] == 3
