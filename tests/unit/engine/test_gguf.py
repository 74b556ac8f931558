"""GGUF files: every block type gives the numbers of its definition, a whole model the bits of its safetensors, and a
damaged file is refused by file and field."""

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.gguf_file import read_gguf
from engine.formats.gguf_folder import folder_of_gguf
from engine.formats.gguf_tokenizer import tokenizer_files
from engine.formats.stored import StoredMatrix, widened
from engine.model.config import read_config
from engine.model.weights import open_weights
from engine.quantization.numbers import dequantized
from tests.unit.engine.gguf_files import gguf_bytes, reordered, write_gguf

SECONDS = 1.0  # in which a damaged file is refused

# ---- blocks, each read element by element as its type is defined


def half(raw: bytes, at: int) -> float:
    return float(np.frombuffer(raw[at : at + 2], np.float16)[0])


def nibble(raw: bytes, at: int, i: int) -> int:
    """Element i of 32 whose low nibbles come first."""
    return raw[at + i % 16] >> (4 * (i // 16)) & 15


def q4_0(raw: bytes) -> Iterator[float]:
    yield from ((nibble(raw, 2, i) - 8) * half(raw, 0) for i in range(32))


def q4_1(raw: bytes) -> Iterator[float]:
    yield from (nibble(raw, 4, i) * half(raw, 0) + half(raw, 2) for i in range(32))


def fifth(raw: bytes, at: int, i: int) -> int:
    return int.from_bytes(raw[at : at + 4], "little") >> i & 1


def q5_0(raw: bytes) -> Iterator[float]:
    yield from (((nibble(raw, 6, i) | fifth(raw, 2, i) << 4) - 16) * half(raw, 0) for i in range(32))


def q5_1(raw: bytes) -> Iterator[float]:
    yield from ((nibble(raw, 8, i) | fifth(raw, 4, i) << 4) * half(raw, 0) + half(raw, 2) for i in range(32))


def q8_0(raw: bytes) -> Iterator[float]:
    yield from (struct.unpack_from("b", raw, 2 + i)[0] * half(raw, 0) for i in range(32))


def scale_and_minimum(raw: bytes, group: int) -> tuple[int, int]:
    packed = raw[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    last = packed[group + 4]
    return last & 15 | packed[group - 4] >> 6 << 4, last >> 4 | packed[group] >> 6 << 4


def of_k(raw: bytes, number: Callable[[int, int], int]) -> Iterator[float]:
    for i in range(256):
        scale, least = scale_and_minimum(raw, i // 32)
        yield half(raw, 0) * scale * number(i // 32, i % 32) - half(raw, 2) * least


def k_nibble(raw: bytes, at: int, group: int, i: int) -> int:
    return raw[at + group // 2 * 32 + i] >> (4 * (group % 2)) & 15


def q4_k(raw: bytes) -> Iterator[float]:
    yield from of_k(raw, lambda group, i: k_nibble(raw, 16, group, i))


def q5_k(raw: bytes) -> Iterator[float]:
    yield from of_k(raw, lambda group, i: k_nibble(raw, 48, group, i) | (raw[16 + i] >> group & 1) << 4)


def q6_k(raw: bytes) -> Iterator[float]:
    for i in range(256):
        part, place = i // 128, i % 128
        low = raw[part * 64 + place % 64] >> (4 * (place // 64)) & 15
        high = raw[128 + part * 32 + place % 32] >> (2 * (place // 32)) & 3
        scale = struct.unpack_from("b", raw, 192 + i // 16)[0]
        yield half(raw, 208) * scale * ((low | high << 4) - 32)


def iq4_nl(raw: bytes) -> Iterator[float]:
    table = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    yield from (table[nibble(raw, 2, i)] * half(raw, 0) for i in range(32))


DEFINED = {
    "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0,
    "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k, "IQ4_NL": iq4_nl,
}  # fmt: skip
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def blocks(kind: str, count: int, seed: int = 0) -> bytes:
    """Random blocks whose scales are ordinary numbers."""
    block, rng = BLOCK_TYPES[kind], np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, block.size), np.uint8)
    for at in HALVES.get(kind, (0,)):
        raw[:, at : at + 2] = rng.normal(0, 0.01, (count, 1)).astype(np.float16).view(np.uint8)
    return raw.tobytes()


@pytest.mark.parametrize("kind", DEFINED)
def test_a_block_stands_for_the_numbers_of_its_definition(kind: str) -> None:
    block, raw = BLOCK_TYPES[kind], blocks(kind, 12)
    matrix = block.integers(np.frombuffer(raw, np.uint8).reshape(3, 4 * block.size))
    wanted = [x for at in range(0, len(raw), block.size) for x in DEFINED[kind](raw[at : at + block.size])]
    assert set(DEFINED) == set(BLOCK_TYPES)
    assert (dequantized(matrix).reshape(-1) == np.array(wanted).astype(np.float32)).all()


# ---- whole models


def of_folder(folder: Path, *, kinds: Callable[[str], str], arch: str, heads: int, kv_heads: int) -> tuple[Any, Any]:
    """Metadata and tensors of a GGUF file of this model: fp32 or blocks with random contents."""
    config = json.loads((folder / "config.json").read_text())
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
    names |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {
        f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")
    }
    names |= {f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"}
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for number, (name, tensor) in enumerate(Checkpoint(folder).tensors.items()):
        stem, _, kind = name.rpartition(".")
        stored = whole.get(stem) or f"blk.{stem.split('.')[2]}.{names['.'.join(stem.split('.')[3:])]}"
        assert not isinstance(tensor, StoredMatrix)
        values = widened(tensor)  # type: ignore[arg-type]
        if arch == "llama" and stored.endswith(("attn_q", "attn_k")):
            values = reordered(values, heads if stored.endswith("q") else kv_heads)
        form = kinds(stored) if values.ndim == 2 else "F32"
        raw = values.tobytes() if form == "F32" else blocks(form, values.size // BLOCK_TYPES[form].block, number)
        tensors[f"{stored}.{kind}"] = (form, values.shape, raw)
    tokens = [token for token, _ in sorted(words.items(), key=lambda each: each[1])]
    tokens += [f"<{number}>" for number in range(len(tokens), config["vocab_size"])]
    metadata = {
        "general.architecture": arch,
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads,
        f"{arch}.attention.key_length": config["head_dim"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{arch}.rope.freq_base": float(config["rope_theta"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.eos_token_id": 1,
    }
    return metadata, tensors


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


MIXED = {
    "attn_v": "Q6_K",
    "ffn_down": "Q6_K",
    "attn_q": "Q4_K",
    "attn_k": "Q4_K",
    "token_embd": "Q8_0",
    "output": "Q5_1",
}


def mixed(name: str) -> str:
    return MIXED.get(name.rpartition(".")[2], "Q5_K" if name != "output" else "Q5_1")


def wide(folder: Path) -> Path:
    """A model whose rows are whole blocks of 256."""
    return tiny(folder, "llama2", hidden=256, heads=4, kv_heads=2, head_dim=64, ffn=512)


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


# ---- tokenizers


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


# ---- damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = wide(tmp_path_factory.mktemp("gguf") / "model")
    return gguf_bytes(*of_folder(folder, kinds=mixed, arch="llama", heads=4, kv_heads=2))


def refused(tmp_path: Path, data: bytes) -> str:
    file, began = tmp_path / "damaged.gguf", time.monotonic()
    file.write_bytes(data)
    with pytest.raises(ModelError) as error:
        folder_of_gguf(file, tmp_path / "cache")
    assert time.monotonic() - began < SECONDS and "damaged.gguf" in str(error.value)
    return str(error.value)


def test_a_cut_file_is_refused_wherever_it_is_cut(tmp_path: Path, whole: bytes) -> None:
    for share in range(1, 40):
        refused(tmp_path, whole[: len(whole) * share // 40])
    refused(tmp_path, b"")
    refused(tmp_path, whole[:-33])


@pytest.mark.parametrize(
    ("at", "form", "value", "word"),
    [
        (0, "<I", 0, "magic"),
        (4, "<I", 99, "version.*99"),
        (8, "<Q", 1 << 40, "tensor_count"),
        (8, "<Q", 100_000, "tensor_count.*100000 is more than"),
        (16, "<Q", 1 << 60, "metadata_kv_count"),
        (24, "<Q", 1 << 62, "length of key"),
    ],
)
def test_a_count_that_the_file_cannot_hold_is_named(
    at: int, form: str, value: int, word: str, tmp_path: Path, whole: bytes
) -> None:
    changed = bytearray(whole)
    struct.pack_into(form, changed, at, value)
    import re

    assert re.search(word, refused(tmp_path, bytes(changed)))


def test_tensors_that_overlap_or_lie_beyond_the_end_are_named(tmp_path: Path, whole: bytes) -> None:
    name = b"blk.1.ffn_down.weight"
    at = whole.index(name) + len(name) + 4 + 2 * 8 + 4
    for offset, word in ((0, "begins at byte 0, inside"), (1 << 50, "ends at byte"), (7, "begins at byte 7")):
        changed = bytearray(whole)
        struct.pack_into("<Q", changed, at, offset)
        said = refused(tmp_path, bytes(changed))
        assert word in said or "inside blk.1.ffn_down.weight" in said
    changed = bytearray(whole)
    struct.pack_into("<I", changed, at - 4, 10)
    assert "blk.1.ffn_down.weight" in (said := refused(tmp_path, bytes(changed))) and "Q2_K" in said


def test_random_damage_never_hangs_and_never_crashes(tmp_path: Path, whole: bytes) -> None:
    rng, header = np.random.default_rng(5), whole.index(b"blk.1.ffn_down.weight") + 60
    caught = 0
    for _ in range(150):
        changed = bytearray(whole)
        for at in rng.integers(0, header, 3):
            changed[at] = int(rng.integers(256))
        file, began = tmp_path / "damaged.gguf", time.monotonic()
        file.write_bytes(changed)
        try:
            folder_of_gguf(file, tmp_path / "cache")
        except ModelError as error:
            caught += "damaged.gguf" in str(error)
        assert time.monotonic() - began < SECONDS
    assert caught > 50
