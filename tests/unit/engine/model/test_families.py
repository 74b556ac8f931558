"""Every family against transformers, in fp32, on tiny random folders: fields that change the computation change it as
they do there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.cuda.weights import why_not_on_gpu
from engine.model.weights import open_weights
from tests.families.folders import CONTEXT, OWN, rewritten, saved
from tests.families.oracle import NEAR, near
from tests.unit.engine.test_transformers import logits_of, oracle

Fields = dict[str, Any]
Words = Callable[..., list[int]]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}


def longrope(pairs: int, original: int = 64, **more: Any) -> Fields:
    factors = {"short_factor": [1.0 + i / 9 for i in range(pairs)], "long_factor": [2.0 + i for i in range(pairs)]}
    return {"rope_type": "longrope", "original_max_position_embeddings": original, "rope_theta": 1e4} | factors | more


def rope(**parameters: Any) -> Fields:
    return {"rope_parameters": {"rope_theta": 1e4} | parameters}


# Fields, and others with which the same weights must give other logits; None: the fields change the tensors themselves.
CASES: list[tuple[str, Fields, Fields | None]] = [
    *((family, {}, None) for family in OWN),
    ("llama", {"mlp_bias": True, "attention_bias": True}, None),
    ("llama", {"head_dim": 48, "intermediate_size": 100}, None),
    ("llama", rope(rope_type="linear", factor=2.0), rope(rope_type="linear", factor=2.5)),
    ("llama", rope(**LLAMA3, original_max_position_embeddings=64), rope(rope_type="default")),
    ("llama", {"rope_parameters": YARN}, rope(rope_type="default")),
    ("llama", {"rope_parameters": YARN | {"attention_factor": 1.2}}, {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}}, {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": YARN | {"beta_fast": 4.0, "beta_slow": 0.1}}, {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": YARN | {"truncate": False}}, {"rope_parameters": YARN}),
    ("llama", {"rope_parameters": longrope(8)}, {"rope_parameters": longrope(8, CONTEXT)}),
    ("llama", {"rope_parameters": longrope(8, CONTEXT, factor=2.0)}, {"rope_parameters": longrope(8, CONTEXT)}),
    ("llama", {"rope_parameters": longrope(8, attention_factor=1.3)}, {"rope_parameters": longrope(8)}),
    ("mistral", {"rope_parameters": YARN}, rope(rope_type="default")),
    ("qwen2", {"rope_parameters": YARN}, rope(rope_type="default")),
    ("qwen3", {"rope_parameters": YARN}, rope(rope_type="default")),
    ("phi3", {"rope_parameters": longrope(8)}, rope(rope_type="default")),
    ("phi3", {"rope_parameters": longrope(4, partial_rotary_factor=0.5)}, rope(partial_rotary_factor=0.5)),
    ("phi3", rope(partial_rotary_factor=0.75), rope(partial_rotary_factor=0.25)),
    *(("granite", {field: 0.5}, {field: 0.75}) for field in OWN["granite"]),
    ("granite", {"mlp_bias": True, "attention_bias": True, "tie_word_embeddings": True}, None),
    ("smollm3", {"no_rope_layers": [0, 1, 1, 0]}, {"no_rope_layers": [1, 1, 1, 0]}),
    ("smollm3", {"no_rope_layer_interval": 2}, {"no_rope_layers": [1, 1, 1, 1]}),
    ("smollm3", {"mlp_bias": True, "attention_bias": True, "tie_word_embeddings": True}, None),
    ("olmo2", {"attention_bias": True, "num_key_value_heads": 4}, None),
    ("olmo2", {"rms_norm_eps": 0.1}, {"rms_norm_eps": 0.2}),
    (
        "olmo3",
        {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 3e4}}},
        {"rope_parameters": {"full_attention": YARN, "sliding_attention": {"rope_theta": 4e4}}},
    ),
    ("olmo3", {"layer_types": ["full_attention"] * 4, "sliding_window": 16}, None),
    ("glm4", rope(partial_rotary_factor=1.0), rope(partial_rotary_factor=0.25)),
    ("glm4", {"attention_bias": False, "intermediate_size": 100}, None),
    ("glm4", rope(rope_type="linear", factor=2.0, partial_rotary_factor=0.5), rope(partial_rotary_factor=0.5)),
    ("gemma", {"hidden_act": "gelu", "tie_word_embeddings": True}, {"hidden_act": "silu"}),
    ("gemma2", {"attn_logit_softcapping": 2.0}, {"attn_logit_softcapping": 2.5}),
    ("gemma2", {"attn_logit_softcapping": None}, {"attn_logit_softcapping": 50.0}),
    ("gemma2", {"final_logit_softcapping": 2.0}, {"final_logit_softcapping": 2.5}),
    ("gemma2", {"final_logit_softcapping": None}, {"final_logit_softcapping": 30.0}),
    ("gemma2", {"query_pre_attn_scalar": 100}, {"query_pre_attn_scalar": 90}),
    ("gemma2", {"hidden_activation": "silu"}, {"hidden_activation": "gelu_pytorch_tanh"}),
    ("gemma2", {"attention_bias": True, "tie_word_embeddings": True}, None),
    ("gemma3_text", {"final_logit_softcapping": 3.0}, {"final_logit_softcapping": None}),
    ("gemma3_text", {"sliding_window_pattern": 3, "layer_types": None}, None),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}, "sliding_attention": {}}},
        {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}},
    ),
    ("gemma3_text", {"attention_bias": True, "tie_word_embeddings": True}, None),
    ("stablelm", {"use_qkv_bias": True}, None),
    ("stablelm", rope(partial_rotary_factor=0.5), rope(partial_rotary_factor=0.75)),
    ("stablelm", {"layer_norm_eps": 0.1}, {"layer_norm_eps": 0.2}),
    ("starcoder2", {"use_bias": False, "tie_word_embeddings": True}, None),
    ("starcoder2", {"hidden_act": "silu", "intermediate_size": 100}, {"hidden_act": "gelu_pytorch_tanh"}),
    ("starcoder2", {"norm_epsilon": 0.1}, {"norm_epsilon": 0.2}),
    ("mixtral", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
    ("mixtral", {"intermediate_size": 100, "tie_word_embeddings": True}, {"hidden_act": "gelu_pytorch_tanh"}),
    ("qwen2_moe", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
    ("qwen2_moe", {"norm_topk_prob": True}, {"norm_topk_prob": False}),
    ("qwen2_moe", {"decoder_sparse_step": 2, "mlp_only_layers": [1]}, None),
    ("qwen2_moe", {"qkv_bias": False, "shared_expert_intermediate_size": 100}, None),
    ("qwen3_moe", {"norm_topk_prob": True}, {"norm_topk_prob": False}),
    ("qwen3_moe", {"mlp_only_layers": [0, 3]}, None),
    ("qwen3_moe", {"attention_bias": True, "moe_intermediate_size": 40}, None),
    ("olmoe", {"clip_qkv": 0.5}, {"clip_qkv": 0.8}),
    ("olmoe", {"clip_qkv": 0.5}, {"clip_qkv": None}),
    ("olmoe", {"norm_topk_prob": True, "attention_bias": True}, {"norm_topk_prob": False}),
    ("deepseek_v2", {"first_k_dense_replace": 0, "n_shared_experts": 1, "kv_lora_rank": 32}, None),
    ("deepseek_v2", {"routed_scaling_factor": 2.5}, {"routed_scaling_factor": 1.0}),
    ("deepseek_v2", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
    ("deepseek_v2", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}}, {"rope_parameters": YARN}),
    ("deepseek_v2", {"rms_norm_eps": 0.1}, {"rms_norm_eps": 0.2}),
    ("gpt_oss", {"num_experts_per_tok": 1}, {"num_experts_per_tok": 2}),
    ("gpt_oss", {"rope_parameters": YARN | {"truncate": False}}, {"rope_parameters": YARN}),
    ("gpt_oss", rope(rope_type="default"), {"rope_parameters": YARN | {"truncate": False}}),
    ("gpt_oss", {"sliding_window": 20}, {"sliding_window": 20, "layer_types": ["full_attention"] * 4}),
    ("gpt_oss", {"attention_bias": False, "intermediate_size": 100, "tie_word_embeddings": True}, None),
]


@pytest.mark.parametrize(("family", "fields", "others"), CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(
    family: str, fields: Fields, others: Fields | None, tmp_path: Path, engine: Any, words: Words
) -> None:
    folder = saved(tmp_path / "model", family, fields)
    ours, theirs, prompt = engine(folder, product_path="fp32"), oracle(folder), words(90)
    logits = ours.logits(prompt)
    assert near(logits, folder, prompt)
    assert ours.logits(prompt, chunk=7).tobytes() == logits.tobytes()
    tokens = [one.token for one in ours.generate(prompt, 24)]
    expected = logits_of(theirs, prompt + tokens)[len(prompt) - 1 : -1]
    second, best = np.sort(expected, axis=1)[:, -2:].T
    assert (np.array(tokens) == expected.argmax(1))[best - second > 2 * NEAR].all()
    if others is not None:
        changed = engine(rewritten(folder, others), product_path="fp32")
        assert np.abs(changed.logits(prompt) - logits).max() > 10 * NEAR, "the field changes nothing"
        assert changed.weights.model_hash != ours.weights.model_hash, "the class does not tell the two apart"


OLD: dict[str, tuple[str, Fields]] = {
    "gemma 3": ("gemma3_text", {"rope_theta": 2e6, "rope_local_base_freq": 2e4}),
    "gemma 3, stretched": ("gemma3_text", {"rope_theta": 2e6, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "olmo 3": ("olmo3", {"rope_theta": 2e5, "rope_scaling": YARN}),
    "phi 3": ("phi3", {"rope_theta": 2e4, "rope_scaling": longrope(8) | {"type": "su", "rope_type": "su"}}),
    "phi 4": ("phi3", {"rope_scaling": longrope(6), "partial_rotary_factor": 0.75}),
    "glm 4": ("glm4", {"rope_theta": 2e4, "partial_rotary_factor": 0.25}),
    "stablelm": ("stablelm", {"rope_theta": 2e4, "partial_rotary_factor": 0.5}),
    "smollm 3": ("smollm3", {"rope_theta": 5e6, "rope_scaling": None}),
    "granite": ("granite", {"rope_theta": 2e4, "rope_scaling": YARN}),
    "gpt-oss": ("gpt_oss", {"rope_theta": 2e4, "rope_scaling": YARN | {"truncate": False}, "sliding_window": 20}),
    "gpt-oss, the least": ("gpt_oss", {}),
}


@pytest.mark.parametrize("shape", OLD)
def test_fields_of_old_folders_mean_what_transformers_means(
    shape: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    family, fields = OLD[shape]
    folder = rewritten(saved(tmp_path / "model", family, {}), fields, "rope_parameters", "rope_theta", "layer_types")
    prompt = words(90)
    logits = engine(folder, product_path="fp32").logits(prompt)
    assert near(logits, folder, prompt)


def test_the_served_context_chooses_the_factors_of_longrope_and_is_then_part_of_the_class(
    tmp_path: Path, words: Words
) -> None:
    folder = saved(tmp_path / "model", "phi3", {"rope_parameters": longrope(8)})
    short, long = (open_weights(folder, tmp_path / "cache", context_tokens=count) for count in (64, 65))
    assert short.config.rope.factors[1] < 2 <= long.config.rope.factors[1]
    assert short.model_hash != long.model_hash and (short.cos[:64] != long.cos[:64]).any()


def test_the_gpu_refuses_by_name_what_it_does_not_compute(tmp_path: Path) -> None:
    beyond = (
        ("gemma2", {}, "the family gemma2"),
        ("mixtral", {}, "the family mixtral"),
        ("gpt_oss", {}, "the family gpt_oss"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
    )
    for family, fields, name in beyond:
        folder = saved(tmp_path / family, family, fields, dtype=torch.bfloat16)
        assert why_not_on_gpu(folder) == f"the GPU kernels do not compute {name}"
    assert why_not_on_gpu(saved(tmp_path / "plain", "llama", {}, dtype=torch.bfloat16)) == ""
