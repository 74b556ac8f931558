"""Models as GGUF files: the bits of the safetensors they were made of, integers close to what they stand for, and
tokenizers as their files say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.builtin import tiny
from engine.formats.errors import ModelError
from engine.formats.gguf_file import read_gguf
from engine.formats.gguf_folder import folder_of_gguf
from engine.formats.gguf_tokenizer import tokenizer_files
from engine.model.config import read_config
from engine.model.weights import open_weights
from tests.unit.engine.gguf_files import mixed, of_folder, wide, write_gguf


@pytest.mark.parametrize(
    ("family", "arch", "heads", "kv_heads"),
    [("llama2", "llama", 4, 4), ("qwen2", "qwen2", 6, 2), ("qwen3", "qwen3", 4, 2)],
)
def test_a_file_of_fp32_gives_the_bits_of_the_model_it_was_made_of(
    family: str, arch: str, heads: int, kv_heads: int, tmp_path: Path, engine: Any, words: Any
) -> None:
    folder = tiny(tmp_path / "model", family)
    made = of_folder(folder, kinds=lambda name: "F32", arch=arch, heads=heads, kv_heads=kv_heads)
    opened = folder_of_gguf(write_gguf(tmp_path / "tiny.gguf", *made), tmp_path / "cache")
    assert opened.name == "tiny" and read_config(opened) == read_config(folder)
    prompt = words(40)
    assert (engine(opened).logits(prompt) == engine(folder).logits(prompt)).all()


def test_a_file_mixes_types_and_is_close_to_its_widened_self(tmp_path: Path, engine: Any, words: Any) -> None:
    made = of_folder(wide(tmp_path / "model"), kinds=mixed, arch="llama", heads=4, kv_heads=2)
    opened = folder_of_gguf(write_gguf(tmp_path / "mixed.gguf", *made), tmp_path / "cache")
    weights = open_weights(opened, tmp_path / "weights")
    assert weights.products == "w4a8-g32+w8a8-g16+w8a8-g32" and weights.path == "pairs"
    prompt, integers = words(60), engine(opened)
    logits = integers.logits(prompt)
    assert (integers.logits(prompt, chunk=7) == logits).all()
    exact = engine(opened, product_path="fp32").logits(prompt)
    assert np.corrcoef(logits.reshape(-1), exact.reshape(-1))[0, 1] > 0.99


def test_a_folder_is_made_once_and_anew_when_the_file_changes(tmp_path: Path) -> None:
    made = of_folder(tiny(tmp_path / "model", "qwen2"), kinds=lambda name: "F32", arch="qwen2", heads=6, kv_heads=2)
    file = write_gguf(tmp_path / "tiny.gguf", *made)
    first = folder_of_gguf(file, tmp_path / "cache")
    written = (first / "config.json").stat().st_mtime_ns
    assert folder_of_gguf(file, tmp_path / "cache") == first
    assert (first / "config.json").stat().st_mtime_ns == written
    write_gguf(file, made[0] | {"qwen2.rope.freq_base": 5e5}, made[1])
    again = folder_of_gguf(file, tmp_path / "cache")
    assert again != first and json.loads((again / "config.json").read_text())["rope_theta"] == 5e5


def words_of(tmp_path: Path, metadata: dict[str, Any]) -> Tokenizer:
    files = tokenizer_files(read_gguf(write_gguf(tmp_path / "words.gguf", metadata, {})))
    return Tokenizer.from_str(json.dumps(files["tokenizer.json"]))


def test_a_byte_level_tokenizer_has_its_merges_and_its_rule_for_words(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<end>", "a", "b", "ab", "1", "2", "12", "Ġ", "Ġa"],
        "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b", "1 2", "Ġ a"],
    }
    words = words_of(tmp_path, metadata)
    assert words.encode("ab a12<end>").tokens == ["ab", "Ġa", "1", "2", "<end>"]
    assert words_of(tmp_path, metadata | {"tokenizer.ggml.pre": "gpt-2"}).encode("12").tokens == ["12"]
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre.*'klingon' is unknown; there are"):
        words_of(tmp_path, metadata | {"tokenizer.ggml.pre": "klingon"})


def test_a_llama_tokenizer_merges_by_scores_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    scores = [0.0] * 259 + [-5.0, -6.0, -7.0, -1.0, -2.0, -3.0]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    words = words_of(tmp_path, metadata)
    assert words.encode("ab aé").tokens == ["<s>", "▁ab", "▁a", "<0xC3>", "<0xA9>"]
    assert words.decode(words.encode("ab aé").ids) == "ab aé"
