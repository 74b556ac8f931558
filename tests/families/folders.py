"""Tiny random folders of every family, made with transformers' own configurations and `save_pretrained`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, CONTEXT = 262, 256
_BASE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GEMMA = {"head_dim": 32, "sliding_window": CONTEXT, "query_pre_attn_scalar": 24}
_MULTIPLIERS = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.1,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
OWN: dict[str, dict[str, Any]] = {  # fields of each family that differ from `_BASE`
    "llama": {},
    "mistral": {"sliding_window": None},
    "ministral": {"sliding_window": CONTEXT, "head_dim": 16},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "phi3": {"original_max_position_embeddings": 64},
    "granite": _MULTIPLIERS,
    "smollm3": {},
    "olmo2": {},
    "olmo3": {"sliding_window": CONTEXT},
    "glm4": {"head_dim": 32},
    "gemma": {"head_dim": 32},
    "gemma2": _GEMMA | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 4.0},
    "gemma3_text": _GEMMA | {"num_hidden_layers": 7},
    "stablelm": {},
    "starcoder2": {},
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 80,
    },
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "head_dim": 32},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "deepseek_v2": {
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 48,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 24,
        "v_head_dim": 20,
        "n_routed_experts": 7,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 48,
        "n_shared_experts": 2,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": CONTEXT},
}


def saved(
    folder: Path,
    family: str,
    fields: Mapping[str, Any],
    *,
    seed: int = 1,
    std: float = 0.2,
    dtype: torch.dtype = torch.float32,
) -> Path:
    """A folder of this family with random weights: matrices of size `std`, and vectors that lie around their first
    values."""
    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(family, **(_BASE | OWN[family] | dict(fields)))
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim == 1:
                values.add_(torch.randn_like(values) * 0.3)
            else:
                torch.nn.init.normal_(values, std=std)
    model.to(dtype).save_pretrained(folder)
    return folder


def rewritten(folder: Path, fields: Mapping[str, Any], *without: str) -> Path:
    """The same folder with other fields in config.json: transformers writes those of its newest form only."""
    path = folder / "config.json"
    kept = {name: value for name, value in json.loads(path.read_text()).items() if name not in without}
    path.write_text(json.dumps(kept | dict(fields)))
    return folder
