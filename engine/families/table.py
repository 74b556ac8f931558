"""The families that are served: a row of what differs from Llama for each of them.

A new dense family is a row here, and a row of `tests/unit/engine/model/test_families.py`, which compares it with
transformers."""

from dataclasses import replace

from engine.families.family import Family, LinearBiases, Norms, Ropes, Scalars, Tensors, Windows

_ATTENTION = LinearBiases(qkv="attention_bias", output="attention_bias")
_ATTENTION_AND_MLP = replace(_ATTENTION, mlp="mlp_bias")
_PRE_AND_POST = Norms(
    behind_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    behind_mlp="post_feedforward_layernorm",
    added=1.0,
)
_BEHIND = Norms(
    before_attention="",
    behind_attention="post_attention_layernorm",
    before_mlp="",
    behind_mlp="post_feedforward_layernorm",
    default_eps=1e-5,
    queries="width",
)
_GEMMA = Family(
    "gemma",
    "GemmaForCausalLM",
    norms=Norms(added=1.0),
    biases=_ATTENTION,
    scalars=Scalars(embedding_is_root=True),
    kv_heads=16,
    head_dim=256,
    default_activation="gelu_pytorch_tanh",
    old_activations=(("gelu", "gelu_pytorch_tanh"),),
    tied=True,
    refused=("use_bidirectional_attention",),
)

_ROWS = (
    Family("llama", "LlamaForCausalLM", biases=_ATTENTION_AND_MLP),
    Family("mistral", "MistralForCausalLM", windows=Windows.TYPED, default_window=4096, kv_heads=8),
    Family("ministral", "MinistralForCausalLM", windows=Windows.TYPED, default_window=4096, kv_heads=8),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        biases=LinearBiases(qkv=True),
        windows=Windows.SWITCHED,
        default_window=4096,
        kv_heads=32,
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        norms=Norms(queries="head"),
        biases=_ATTENTION,
        windows=Windows.SWITCHED,
        default_window=4096,
        kv_heads=32,
        head_dim=128,
    ),
    Family(
        "phi3",
        "Phi3ForCausalLM",
        norms=Norms(default_eps=1e-5),
        tensors=Tensors(qkv=("qkv_proj",), gate_up=("gate_up_proj",)),
        ropes=Ropes(partial=1.0, original_context=4096, names=(("su", "longrope"), ("yarn", "longrope"))),
        windows=Windows.ALL,
    ),
    Family(
        "granite",
        "GraniteForCausalLM",
        biases=_ATTENTION_AND_MLP,
        scalars=Scalars(
            embedding="embedding_multiplier",
            attention="attention_multiplier",
            residual="residual_multiplier",
            logits="logits_scaling",
        ),
    ),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        biases=_ATTENTION_AND_MLP,
        ropes=Ropes(theta=2e6, without="no_rope_layers", without_interval="no_rope_layer_interval"),
        windows=Windows.SWITCHED,
        kv_heads=4,
        tied=True,
        refused=("use_sliding_window",),
    ),
    Family("olmo2", "Olmo2ForCausalLM", norms=_BEHIND, biases=_ATTENTION),
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        norms=_BEHIND,
        biases=_ATTENTION,
        ropes=Ropes(theta=5e5, local_theta=5e5),
        windows=Windows.TYPED,
        default_window=4096,
        window_period=4,
    ),
    Family(
        "glm4",
        "Glm4ForCausalLM",
        norms=Norms(
            behind_attention="post_self_attn_layernorm", behind_mlp="post_mlp_layernorm", default_eps=1.5625e-7
        ),
        biases=LinearBiases(qkv="attention_bias", default=True),
        tensors=Tensors(gate_up=("gate_up_proj",)),
        ropes=Ropes(partial=0.5, interleaved=True),
        kv_heads=2,
        head_dim=128,
    ),
    _GEMMA,
    replace(
        _GEMMA,
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        norms=_PRE_AND_POST,
        scalars=Scalars(
            embedding_is_root=True,
            attention_root="query_pre_attn_scalar",
            attention_cap="attn_logit_softcapping",
            logits_cap="final_logit_softcapping",
            defaults=(
                ("query_pre_attn_scalar", 256.0),
                ("attn_logit_softcapping", 50.0),
                ("final_logit_softcapping", 30.0),
            ),
        ),
        windows=Windows.TYPED,
        default_window=4096,
        window_period=2,
        kv_heads=4,
        activation="hidden_activation",
        old_activations=(),
    ),
    replace(
        _GEMMA,
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        norms=replace(_PRE_AND_POST, queries="head"),
        ropes=Ropes(theta=1e6, local_theta=1e4, local_field="rope_local_base_freq"),
        scalars=Scalars(
            embedding_is_root=True,
            attention_root="query_pre_attn_scalar",
            logits_cap="final_logit_softcapping",
            defaults=(("query_pre_attn_scalar", 256.0), ("final_logit_softcapping", None)),
        ),
        windows=Windows.TYPED,
        default_window=4096,
        window_period=6,
        period_field="sliding_window_pattern",
        kv_heads=4,
        activation="hidden_activation",
        old_activations=(),
        refused=("use_bidirectional_attention", "attn_logit_softcapping"),
    ),
    Family(
        "stablelm",
        "StableLmForCausalLM",
        norms=Norms(kind="layer", eps="layer_norm_eps", default_eps=1e-5),
        biases=LinearBiases(qkv="use_qkv_bias"),
        ropes=Ropes(partial=0.25),
        kv_heads=32,
        refused=("qk_layernorm", "use_parallel_residual"),
    ),
    Family(
        "starcoder2",
        "Starcoder2ForCausalLM",
        norms=Norms(kind="layer", eps="norm_epsilon", default_eps=1e-5),
        biases=LinearBiases(qkv="use_bias", output="use_bias", mlp="use_bias", default=True),
        tensors=Tensors(gate_up=("c_fc",), down="c_proj", gated=False),
        windows=Windows.ALL,
        kv_heads=2,
        default_activation="gelu_pytorch_tanh",
        tied=True,
    ),
)
FAMILIES = {family.model_type: family for family in _ROWS}
ARCHITECTURES = {family.architecture: family for family in _ROWS}
