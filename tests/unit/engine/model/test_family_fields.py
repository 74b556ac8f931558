"""Fields of config.json that no family computes are refused by name, and the table names each family once."""

from pathlib import Path
from typing import Any

import pytest

from engine.families.table import FAMILIES
from engine.formats.errors import ModelError
from engine.model.config import read_config
from tests.families.folders import OWN, rewritten, saved

Fields = dict[str, Any]


def rope(**parameters: Any) -> Fields:
    return {"rope_parameters": {"rope_theta": 1e4} | parameters}


REFUSED: list[tuple[str, Fields, str, str]] = [
    ("llama", {"hidden_act": "relu2"}, "hidden_act", "is not one of silu"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor", "is not 1"),
    ("mistral", {"mlp_bias": True}, "mlp_bias", "is on"),
    ("phi3", rope(rope_type="longrope", short_factor=[1.0] * 3), "short_factor", "not a list of 8 numbers"),
    ("smollm3", {"use_sliding_window": True}, "use_sliding_window", "is on"),
    ("smollm3", {"no_rope_layers": [1, 1]}, "no_rope_layers", "for 4 layers"),
    ("olmo3", rope(rope_type="default"), "rope_parameters", "for each kind of layer"),
    ("glm4", rope(partial_rotary_factor=0.1), "rope_parameters.partial_rotary_factor", "rotates 3 of 32"),
    ("glm4", rope(rope_type="proportional"), "rope_parameters.rope_type", "is not one of default"),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention", "is on"),
    ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types", "full_attention and sliding_attention"),
    ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping", "not a positive number"),
    ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping", "is on"),
    ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual", "is on"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm", "is on"),
    ("mixtral", {"num_experts_per_tok": 7}, "num_experts_per_tok", "7 is more than the 6 experts"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts", "not a positive whole number"),
    ("qwen2_moe", {"use_sliding_window": True}, "use_sliding_window", "is on"),
    ("qwen2_moe", {"mlp_only_layers": "all"}, "mlp_only_layers", "not a list of layers"),
    ("qwen2_moe", {"norm_topk_prob": 1}, "norm_topk_prob", "neither true nor false"),
    ("qwen3_moe", {"num_experts": 8, "num_local_experts": 9}, "num_experts", "num_local_experts is 9"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step", "not a positive whole number"),
    ("deepseek_v2", {"q_lora_rank": 1536}, "q_lora_rank", "is 1536: queries that are made of a latent too"),
    (
        "deepseek_v2",
        {"kv_lora_rank": 50},
        "kv_lora_rank",
        "50, with the 16 of qk_rope_head_dim, is not a multiple of 16",
    ),
    ("deepseek_v2", {"topk_method": "group_limited_greedy"}, "topk_method", "is not 'greedy'"),
    ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq", "2 is not 1"),
    ("deepseek_v2", {"first_k_dense_replace": -1}, "first_k_dense_replace", "not a whole number of layers"),
    ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob", "is on"),
    ("olmoe", {"clip_qkv": -1.0}, "clip_qkv", "not a positive number"),
    ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit", "5.0 is not 7.0"),
    ("gpt_oss", {"hidden_act": "gelu_pytorch_tanh"}, "hidden_act", "is not silu"),
]


@pytest.mark.parametrize(("family", "fields", "field", "problem"), REFUSED)
def test_what_is_not_computed_is_refused_by_field(
    family: str, fields: Fields, field: str, problem: str, tmp_path: Path
) -> None:
    folder = rewritten(saved(tmp_path / "model", family, {}), fields)
    with pytest.raises(ModelError, match=problem) as refused:
        read_config(folder)
    assert refused.value.field == field


def test_the_table_has_each_family_once() -> None:
    assert set(FAMILIES) == set(OWN)
    assert len({family.architecture for family in FAMILIES.values()}) == len(FAMILIES)
