"""The tokenizer that the gateway puts together from a folder's files gives the ids that transformers gives."""

import ctypes
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from string import ascii_lowercase
from typing import Any

import pytest
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from engine.builtin.shipped import MODEL
from gateway.prompts.assets import AssetError, load_assets
from tests.unit.gateway.byte_model import byte_tokenizer

TEXTS = [
    "hi there",
    "a <think> b</think><|extra|>c <|user|> <image> end",
    " <|extra|> lone <tool> and  <think>",
    "x" * 100,
    "<|begin|>hi<|end|>",
]
PLAIN = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
Edit = Callable[[Path], None]


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / name).write_text(json.dumps(content))


def change(folder: Path, **fields: Any) -> None:
    file = folder / "tokenizer_config.json"
    write(folder, file.name, json.loads(file.read_text()) | fields)


def rebuild(edit: Callable[[Tokenizer], object]) -> Edit:
    def act(folder: Path) -> None:
        tokenizer = byte_tokenizer()
        edit(tokenizer)
        tokenizer.save(str(folder / "tokenizer.json"))

    return act


def config(**fields: Any) -> Edit:
    return lambda folder: change(folder, **fields)


def begin_and_end(tokenizer: Tokenizer) -> None:
    specials = [("<|begin|>", 256), ("<|end|>", 257)]
    tokenizer.post_processor = TemplateProcessing(single="<|begin|> $A <|end|>", special_tokens=specials)


def decoder_of_tokens(folder: Path) -> None:
    known = Tokenizer.from_file(str(folder / "tokenizer.json")).get_added_tokens_decoder()
    flags = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
    listed = {str(token_id): {flag: getattr(token, flag) for flag in flags} for token_id, token in known.items()}
    listed["261"] = {"content": "<think>", "special": False, **PLAIN}
    listed["262"] = {"content": "</think>", "special": False, **PLAIN}
    listed["263"] = {"content": "<|extra|>", "special": True, **PLAIN, "lstrip": True}
    change(folder, added_tokens_decoder=listed)


def legacy_files(folder: Path) -> None:
    write(folder, "added_tokens.json", {"<think>": 261, "<|extra|>": 262})
    write(folder, "special_tokens_map.json", {"additional_special_tokens": ["<|extra|>"]})


SHAPES: dict[str, Edit] = {
    "plain": lambda folder: None,
    "truncation": rebuild(lambda tokenizer: tokenizer.enable_truncation(8)),
    "padding": rebuild(lambda tokenizer: tokenizer.enable_padding(length=64, pad_id=257, pad_token="<|end|>")),
    "both ends": rebuild(begin_and_end),
    "both ends, told otherwise": lambda folder: (rebuild(begin_and_end)(folder), change(folder, add_bos_token=False))[
        1
    ],
    "told to begin, without a way": config(add_bos_token=True),
    "added_tokens_decoder": decoder_of_tokens,
    "added_tokens.json": legacy_files,
    "extra_special_tokens": config(extra_special_tokens=["<|extra|>", "<tool>"]),
    "extra_special_tokens by name": config(extra_special_tokens={"image_token": "<image>"}),
    "additional_special_tokens": config(additional_special_tokens=["<|extra|>"]),
    "names and a list": config(extra_special_tokens={"image_token": "<image>"}, additional_special_tokens=["<tool>"]),
    "lists in two files": lambda folder: (
        change(folder, extra_special_tokens=["<image>", "<tool>"]),
        write(folder, "special_tokens_map.json", {"extra_special_tokens": ["<|extra|>"]}),
    )[0],
    "a token of its own name": config(image_token="<image>"),
    "a named token that is new": config(pad_token="<|extra|>"),
    "split_special_tokens": config(split_special_tokens=True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_ids_are_those_of_transformers(shape: str, folder: Path) -> None:
    change(folder, tokenizer_class="PreTrainedTokenizerFast")
    SHAPES[shape](folder)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load_assets(folder, "tiny").tokenizer
    for text in TEXTS:
        for special in (True, False):
            assert list(ours.encode(text, special=special)) == theirs.encode(text, add_special_tokens=special), text
        ids = theirs.encode(text)
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids, clean_up_tokenization_spaces=False)


def sentence_pieces(folder: Path) -> None:
    """A tokenizer in the form of Llama 2's: spaces are letters, bytes have tokens of their own."""
    vocab = {token: index for index, token in enumerate(("<unk>", "<s>", "</s>"))}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    for token in (*"▁abcdefghijklmnopqrstuvwxyz", "▁a", "▁h", "▁hi"):
        vocab[token] = len(vocab)
    merges = [("▁", "a"), ("▁", "h"), ("▁h", "i")]
    tokenizer = Tokenizer(BPE(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokens = ("<unk>", "<s>", "</s>")
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens])
    tokenizer.save(str(folder / "tokenizer.json"))
    change(folder, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("model_type", ["llama", "mistral", "phi3", "granite", None])
@pytest.mark.parametrize("kind", ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", None])
@pytest.mark.parametrize("more", [{}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False}])
def test_pieces_of_sentences_are_those_of_transformers(
    model_type: str | None, kind: str | None, more: dict[str, Any], folder: Path
) -> None:
    sentence_pieces(folder)
    write(folder, "config.json", {"max_position_embeddings": 512, "vocab_size": 300, "model_type": model_type})
    change(folder, tokenizer_class=kind, **more)
    if model_type is None:
        write(folder, "config.json", {"max_position_embeddings": 512, "vocab_size": 300})
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_assets(folder, "tiny").tokenizer
    for text in ("hi", "<s>hi a</s>hi", " hi", "a</s> hi", "hi  hi", "é hi", "</s>", "", "<s>[INST] hi [/INST]"):
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert list(ours.encode(text, special=special)) == ids, text
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True), text


@pytest.mark.parametrize("model_type", ["gemma", "gemma2", "gemma3_text"])
def test_pieces_of_sentences_of_gemma_are_those_of_transformers(model_type: str, folder: Path) -> None:
    vocab = {token: index for index, token in enumerate(("<pad>", "<eos>", "<bos>", "<unk>"))}
    vocab |= {f"<0x{byte:02X}>": 4 + byte for byte in range(256)}
    for token in (*"▁abcdefghijklmnopqrstuvwxyz", "▁h", "▁hi"):
        vocab[token] = len(vocab)
    content = {"max_position_embeddings": 512, "vocab_size": 300, "model_type": model_type}
    write(folder, "config.json", content)
    transformers.GemmaTokenizer(vocab=vocab, merges=[("▁", "h"), ("▁h", "i")]).save_pretrained(folder)
    theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), load_assets(folder, "tiny").tokenizer
    for text in ("hi", "<bos>hi a<eos>hi", " hi", "hi  hi", "é hi", "", "a\n\n hi"):
        for special in (True, False):
            ids = theirs.encode(text, add_special_tokens=special)
            assert list(ours.encode(text, special=special)) == ids, text
        assert ours.decode(ids, skip_special=True) == theirs.decode(ids, skip_special_tokens=True), text


def test_a_long_prompt_stays_long_whatever_the_tokenizer_was_saved_with(folder: Path) -> None:
    for edit in ("truncation", "padding"):
        SHAPES[edit](folder)
        assert len(load_assets(folder, "tiny").tokenizer.encode("x" * 100, special=True)) == 100


def test_a_token_that_only_another_file_has_is_one_token(folder: Path) -> None:
    assert len(load_assets(folder, "tiny").tokenizer.encode("<|extra|>", special=False)) == len("<|extra|>")
    for shape in ("added_tokens_decoder", "added_tokens.json", "extra_special_tokens"):
        SHAPES[shape](folder)
        assert len(load_assets(folder, "tiny").tokenizer.encode("<|extra|>", special=False)) == 1


def test_ids_that_no_tokenizer_can_give_are_refused_by_file_and_field(folder: Path) -> None:
    write(folder, "added_tokens.json", {"<think>": 300})
    with pytest.raises(AssetError, match=r"added_tokens\.json: ids has id 300 for '<think>', in tokenizer\.json 261"):
        load_assets(folder, "tiny")
    (folder / "added_tokens.json").unlink()
    change(folder, added_tokens_decoder={"7": {"content": "<think>", "special": False, **PLAIN}})
    with pytest.raises(AssetError, match=r"tokenizer_config\.json: added_tokens_decoder has id 7 for '<think>'"):
        load_assets(folder, "tiny")


@pytest.mark.parametrize(
    "fields", [{"added_tokens_decoder": {"261": {"lstrip": True}}}, {"extra_special_tokens": [5]}, {"pad_token": [1]}]
)
def test_tokens_that_are_none_are_refused(fields: dict[str, Any], folder: Path) -> None:
    change(folder, **fields)
    with pytest.raises(AssetError, match=r"tokenizer_config\.json|added_tokens\.json"):
        load_assets(folder, "tiny")


def test_a_token_may_keep_the_spaces_around_it(folder: Path) -> None:
    decoder_of_tokens(folder)
    spaced = load_assets(folder, "tiny").tokenizer.encode("a <|extra|>", special=False)
    assert spaced == (97, 263)  # lstrip: the token swallows the space before it
    assert AddedToken("<|extra|>", lstrip=True).lstrip


class _Heap(ctypes.Structure):
    """struct mallinfo2 of the C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usm fsm used free keep".split()]


def bytes_in_use() -> int:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Heap
    found: int = library.mallinfo2().used
    return found


def test_words_that_never_come_again_do_not_fill_the_memory() -> None:
    random = Random(0)
    words = ["".join(random.choices(ascii_lowercase, k=200)) for _ in range(3000)]
    served, file = load_assets(MODEL, "tiny").tokenizer, str(MODEL / "tokenizer.json")
    grown = list[int]()
    for encode in (partial(served.encode, special=False), Tokenizer.from_file(file).encode):
        before = bytes_in_use()
        for word in words:
            encode(word)
        grown.append(bytes_in_use() - before)
    bounded, unbounded = grown
    assert bounded < 10 << 20 < unbounded, "the second is the negative control"
