"""Writes GGUF files for tests: a header and tensors as bytes; random blocks; a tiny model in whatever types."""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.gguf_blocks import BLOCK_TYPES
from engine.formats.stored import StoredMatrix, widened

TEXT, ARRAY, UINT32, INT32, FLOAT32, BOOL = 8, 9, 4, 5, 6, 7
KINDS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
ALIGN = 32

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]  # kind, shape with rows first, contents


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    at, body = 0, b""
    for name, (kind, shape, raw) in tensors.items():
        sides = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += _text(name) + struct.pack("<I", len(shape)) + sides + struct.pack("<IQ", KINDS[kind], at)
        body += raw + bytes(-len(raw) % ALIGN)
        at = len(body)
    return head + bytes(-len(head) % ALIGN) + body


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Tensors) -> Path:
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


def reordered(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of llama's queries or keys as llama.cpp wants them."""
    return weight.reshape(heads, 2, len(weight) // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def blocks(kind: str, count: int, seed: int = 0) -> bytes:
    """Random blocks whose scales are ordinary numbers."""
    block, rng = BLOCK_TYPES[kind], np.random.default_rng(seed)
    raw = rng.integers(0, 256, (count, block.size), np.uint8)
    if kind == "MXFP4":
        raw[:, 0] = rng.integers(118, 124, count)
        return raw.tobytes()
    for at in HALVES.get(kind, (0,)):
        raw[:, at : at + 2] = rng.normal(0, 0.01, (count, 1)).astype(np.float16).view(np.uint8)
    return raw.tobytes()


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


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", UINT32, value)
        case float():
            return struct.pack("<If", FLOAT32, value)
        case str():
            return struct.pack("<I", TEXT) + _text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", ARRAY, TEXT, len(value)) + b"".join(map(_text, value))
        case [int(), *_]:
            return struct.pack("<IIQ", ARRAY, INT32, len(value)) + struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", ARRAY, FLOAT32, len(value)) + struct.pack(f"<{len(value)}f", *value)
