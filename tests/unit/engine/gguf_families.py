"""Writes random folders of every family as GGUF files, with the package of llama.cpp: its names of tensors, its keys,
its blocks. What llama.cpp's converter does to the numbers is done here: rows of queries and keys, norms, experts."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize
from numpy.typing import NDArray

from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import Tensor, widened
from engine.model.config import read_config
from engine.model.layout import read_tensors

Floats = NDArray[np.float32]
_EXPERT = re.compile(r"(?P<layer>.*layers\.(?P<number>\d+)\.)(?P<block>.*)\.experts\.\d+\.(?P<part>\w+)\.weight")


@dataclass(frozen=True)
class GgufKind:
    arch: str
    options: dict[str, Any] = field(default_factory=dict)  # fields of the random folder
    reordered: bool = False
    norms_added: float = 0.0
    keys: Callable[[gguf.GGUFWriter, dict[str, Any]], None] = lambda writer, config: None


def _rope_dimension(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    share = config["rope_parameters"]["partial_rotary_factor"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(head_dim * share))


def _phi3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config["rope_parameters"]
    _rope_dimension(writer, config)
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_sliding_window(config["sliding_window"] or 0)
    stretch = config["max_position_embeddings"] / rope["original_max_position_embeddings"]
    writer.add_rope_scaling_attn_factors(
        (1 + np.log(stretch) / np.log(rope["original_max_position_embeddings"])) ** 0.5
    )
    for name, factors in (("long", "long_factor"), ("short", "short_factor")):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[factors], np.float32))


def _gemma2(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_sliding_window(config["sliding_window"])


def _gemma3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])


def _granite(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _olmo3(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def _experts(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if width := config.get("moe_intermediate_size"):
        writer.add_expert_feed_forward_length(width)
    if width := config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(width)


_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.05, 2.1, 3.7, 5.3],
}
KINDS: dict[str, GgufKind] = {
    "llama": GgufKind("llama", {"attention_bias": True, "mlp_bias": True}, reordered=True),
    "qwen2": GgufKind("qwen2"),
    "qwen3": GgufKind("qwen3"),
    "phi3": GgufKind("phi3", {"rope_parameters": _LONGROPE, "sliding_window": 40}, keys=_phi3),
    "gemma": GgufKind("gemma", {"tie_word_embeddings": True}, norms_added=1.0),
    "gemma2": GgufKind(
        "gemma2",
        {"query_pre_attn_scalar": 32, "sliding_window": 40, "tie_word_embeddings": True},
        norms_added=1.0,
        keys=_gemma2,
    ),
    "gemma3_text": GgufKind(
        "gemma3",
        {"query_pre_attn_scalar": 32, "final_logit_softcapping": None, "sliding_window": 40},
        norms_added=1.0,
        keys=_gemma3,
    ),
    "granite": GgufKind("granite", {"attention_bias": True}, reordered=True, keys=_granite),
    "smollm3": GgufKind("smollm3", reordered=True),
    "olmo2": GgufKind("olmo2"),
    "olmo3": GgufKind("olmo2", {"sliding_window": 40}, keys=_olmo3),
    "glm4": GgufKind("glm4", {"attention_bias": True}, keys=_rope_dimension),
    "stablelm": GgufKind("stablelm", {"use_qkv_bias": True}, keys=_rope_dimension),
    "starcoder2": GgufKind("starcoder2", {"sliding_window": None}),
    "mixtral": GgufKind("llama", reordered=True, keys=_experts),
    "qwen2_moe": GgufKind("qwen2moe", keys=_experts),
    "qwen3_moe": GgufKind("qwen3moe", {"norm_topk_prob": True}, keys=_experts),
    "olmoe": GgufKind("olmoe", {"rms_norm_eps": 1e-5}, keys=_experts),
}


def numbers_of(folder: Path) -> dict[str, Floats]:
    """The tensors of a folder of numbers by Hugging Face's names, each matrix of an expert for itself."""
    found = read_tensors(read_config(folder), Checkpoint(folder))
    return {name: np.ascontiguousarray(widened(each)) for name, each in found.items() if isinstance(each, Tensor)}


def write_family(folder: Path, out: Path, family: str, kind: str = "F32") -> Path:
    """`kind`: the type of matrices but of routers, which llama.cpp leaves in F32."""
    how, config = KINDS[family], json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(out, how.arch)
    _add_keys(writer, how, config)
    arch = next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == how.arch)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, values in _converted(folder, how, config).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, f"gguf has no name for {name} in {how.arch}"
        if kind == "F32" or values.ndim == 1 or "ffn_gate_inp" in stored:
            writer.add_tensor(stored, values)
        else:
            number = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(stored, quantize(values, number), raw_dtype=number)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def _add_keys(writer: gguf.GGUFWriter, how: GgufKind, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config.get("rope_parameters", {})
    writer.add_rope_freq_base(rope.get("full_attention", rope).get("rope_theta", 10000.0))
    if eps := config.get("rms_norm_eps"):
        writer.add_layer_norm_rms_eps(eps)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_epsilon"])
    if head_dim := config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    how.keys(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{number}" for number in range(config["vocab_size"])])
    writer.add_token_merges(["t 0"])


def _converted(folder: Path, how: GgufKind, config: dict[str, Any]) -> dict[str, Floats]:
    """The numbers as llama.cpp's converter writes them, under names that the package knows."""
    found, experts = dict[str, Floats](), dict[str, list[Floats]]()
    tied = config["tie_word_embeddings"]
    for name, values in numbers_of(folder).items():
        if name == "lm_head.weight" and tied:
            continue
        if together := _EXPERT.fullmatch(name):
            mixtral = how.arch == "llama"
            merged = f"layers.{together['number']}.feed_forward" if mixtral else together["layer"] + together["block"]
            experts.setdefault(f"{merged}.experts.{together['part']}.weight", []).append(values)
        elif how.reordered and (of := re.search(r"\.([qk])_proj\.", name)):
            heads = config["num_attention_heads" if of[1] == "q" else "num_key_value_heads"]
            rows = values.reshape(heads, 2, len(values) // heads // 2, -1).swapaxes(1, 2)
            found[name] = np.ascontiguousarray(rows.reshape(values.shape))
        elif name.endswith("norm.weight"):
            found[name] = values + np.float32(how.norms_added) if how.norms_added else values
        else:
            found[name] = values.squeeze()
    return found | {name: np.stack(each) for name, each in experts.items()}
