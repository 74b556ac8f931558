"""Makes complete Hugging Face folders with random weights: a model for verification, real shapes, tiny ones of every
family.

Weights are drawn from a seed, tensor by tensor; each tensor has its own stream, so order and sharding do not matter.
They are uniformly distributed and need exact arithmetic only, so the file is the same on every machine. The answers are
babble, which changes with any bit: that suits proofs of exactness. The lm head favours printable bytes."""

import json
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.builtin.tokenizer import BEGIN, END, PAD, VOCAB, write_tokenizer
from engine.formats.writing import write_safetensors
from engine.model.config import ModelConfig, read_config
from engine.model.digest import locked
from engine.model.layout import fused_tensors

_VERSION = 1  # version of the random model; raise it whenever its bytes change
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int = VOCAB
    context: int = 8192
    theta: float = 10000.0
    tied: bool = False
    scaling: tuple[tuple[str, str | float], ...] = ()  # rope scaling as in config.json
    experts: tuple[tuple[str, int], ...] = ()  # fields of config.json about experts
    more: tuple[tuple[str, int], ...] = ()  # other fields of config.json


def _moe(experts: int, chosen: int, width: int) -> tuple[tuple[str, int], ...]:
    fields = {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": width}
    return (*fields.items(), ("norm_topk_prob", True))


_TINY = ModelShape("llama", 64, 2, 4, 2, 16, 176, context=512)
_QWEN_HALF = ModelShape("qwen2", 896, 24, 14, 2, 64, 4864, 151936, 32768, 1e6, tied=True)
SHAPES: dict[str, ModelShape] = {
    "random": ModelShape("llama", 256, 4, 4, 2, 64, 704),
    "qwen2.5-0.5b": _QWEN_HALF,
    "qwen2.5-0.5b-bytes": replace(_QWEN_HALF, vocab=VOCAB, tied=False),  # its layers; its answers are readable bytes
    "qwen3-0.6b": ModelShape("qwen3", 1024, 28, 16, 8, 128, 3072, 151936, 40960, 1e6, tied=True),
    "qwen3-moe-small": ModelShape("qwen3_moe", 1024, 10, 16, 4, 64, 3072, 32000, 8192, 1e6, experts=_moe(64, 8, 384)),
    "llama3.2-1b": ModelShape("llama", 2048, 16, 32, 8, 64, 8192, 128256, 131072, 5e5, tied=True),
}
_LLAMA3 = (
    ("rope_type", "llama3"),
    ("factor", 8.0),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 64),
)
_YARN = (("rope_type", "yarn"), ("factor", 8.0), ("truncate", False), ("original_max_position_embeddings", 64))
TINY: dict[str, ModelShape] = {
    "llama2": replace(_TINY, kv_heads=4),
    "llama3": replace(_TINY, theta=5e5, scaling=_LLAMA3),
    "qwen2": replace(_TINY, family="qwen2", theta=1e6, heads=6, head_dim=16, hidden=96),
    "qwen3": replace(_TINY, family="qwen3", theta=1e6, head_dim=32),
    "qwen3_moe": replace(_TINY, family="qwen3_moe", theta=1e6, head_dim=32, experts=_moe(8, 3, 48)),
    "gpt_oss": replace(
        _TINY,
        family="gpt_oss",
        theta=1.5e5,
        head_dim=32,
        ffn=96,
        scaling=_YARN,
        experts=(("num_local_experts", 8), ("num_experts_per_tok", 3)),
        more=(("attention_bias", True), ("sliding_window", 40)),
    ),
}


def ensure_random(cache: Path) -> Path:
    """The folder of a model with random weights, made on first use."""
    folder = cache / f"random-{_VERSION}"
    if folder.is_dir():
        return folder
    with locked(cache / "random.lock"):
        if not folder.is_dir():
            aside = cache / f"random-{_VERSION}.tmp"
            shutil.rmtree(aside, ignore_errors=True)
            make_model(aside)
            os.rename(aside, folder)
    return folder


def make_model(folder: Path, *, seed: int = 0, dtype: str = "bf16", shape: str = "random") -> Path:
    return _make(folder, SHAPES[shape], seed=seed, dtype=dtype)


def make_shape(folder: Path, *, shape: str = "qwen2.5-0.5b", dtype: str = "bf16", seed: int = 0) -> Path:
    """A checkpoint of a real model's shape, for benchmarks."""
    return make_model(folder, seed=seed, dtype=dtype, shape=shape)


def tiny(
    folder: Path,
    family: str,
    *,
    dtype: str = "fp32",
    tied: bool = False,
    shards: int = 1,
    seed: int = 0,
    **changes: Any,
) -> Path:
    """A model for tests: family is llama2, llama3 (rope scaling), qwen2, qwen3, qwen3_moe or gpt_oss; `changes` are
    fields of ModelShape."""
    return _make(folder, replace(TINY[family], tied=tied, **changes), seed=seed, dtype=dtype, shards=shards)


def _make(folder: Path, shape: ModelShape, *, seed: int, dtype: str, shards: int = 1) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "config.json", _config(shape, dtype))
    special = {"bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD}
    _write_json(folder / "generation_config.json", special)
    write_tokenizer(folder, shape.context)
    config = read_config(folder)
    shapes = {source.name: source.shape for fused in fused_tensors(config) for source in fused.sources}

    def fill(name: str, shape: tuple[int, ...], first: int, count: int) -> NDArray[np.float32]:
        return _values(config, seed, name, shape, first, count)

    if shards == 1:
        write_safetensors(folder / "model.safetensors", dtype, shapes, fill)
        return folder
    index: dict[str, str] = {}
    total = 0
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(shapes.items())[shard::shards])
        total += write_safetensors(folder / file, dtype, part, fill)
        index |= dict.fromkeys(part, file)
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    return folder


def _config(shape: ModelShape, dtype: str) -> dict[str, object]:
    return {
        "architectures": [_ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-5 if shape.family == "llama" else 1e-6,
        "rope_theta": shape.theta,
        "rope_scaling": dict(shape.scaling) or None,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "hidden_act": "silu",
        "dtype": {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}[dtype],
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "pad_token_id": PAD,
        **dict(shape.experts),
        **dict(shape.more),
    }


def _values(
    config: ModelConfig, seed: int, name: str, shape: tuple[int, ...], first: int, count: int
) -> NDArray[np.float32]:
    """The values first .. first + count - 1 of a tensor: uniform, with a deviation that lets inputs matter."""
    stream = int.from_bytes(blake3(f"{seed} {name} {first}".encode()).digest(16), "little")
    uniform = np.random.Generator(np.random.PCG64(stream)).random(count, np.float32)
    values = (uniform - np.float32(0.5)) * np.float32(3.4641)  # mean 0, deviation 1
    if len(shape) == 1:
        return values * np.float32(0.1) + np.float32(0.0 if name.endswith("bias") else 1.0)
    values *= np.float32(_spread(name) / shape[1] ** 0.5)
    if name == "lm_head.weight":
        _favour_printable(values, first, shape[1])
    return values


def _spread(name: str) -> float:
    """The deviation that a product's output gets from an input of deviation 1."""
    match name.removesuffix(".weight").rsplit(".", 1)[-1]:
        case "q_proj" | "k_proj":
            return 1.5  # so that attention prefers some slots
        case "lm_head":
            return 3.5  # so that logits differ
        case _:
            return 1.0


def _favour_printable(values: NDArray[np.float32], first: int, columns: int) -> None:
    tokens = np.arange(first, first + len(values)) // columns
    values[(tokens < 0x20) | (tokens > 0x7E)] *= np.float32(0.1)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
