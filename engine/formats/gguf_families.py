"""The architectures of GGUF files that Baton serves: what each calls its tensors, and how its numbers differ.

A row names the family of `engine/families/table.py` that computes the model. llama.cpp stores some numbers otherwise
than Hugging Face: it reorders the rows of queries and keys for its own rotary layout, adds the 1 to the weights of
Gemma's norms, and holds the matrices of all experts of a layer in one tensor."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engine.formats.errors import ModelError
from engine.formats.gguf_file import GgufFile

EXPERT = "{}"  # stands for an expert's number in the name of a tensor that holds all of them
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
}
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_BEFORE_AND_BEHIND = _BEHIND | {"ffn_norm": "pre_feedforward_layernorm"}
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": f"mlp.experts.{EXPERT}.gate_proj",
    "ffn_up_exps": f"mlp.experts.{EXPERT}.up_proj",
    "ffn_down_exps": f"mlp.experts.{EXPERT}.down_proj",
}
_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": f"block_sparse_moe.experts.{EXPERT}.w1",
    "ffn_up_exps": f"block_sparse_moe.experts.{EXPERT}.w3",
    "ffn_down_exps": f"block_sparse_moe.experts.{EXPERT}.w2",
}


@dataclass(frozen=True, slots=True)
class GgufFamily:
    model_type: str
    architecture: str  # the class in config.json
    names: Mapping[str, str] = field(default_factory=dict)  # parts of a layer beside Llama's
    without: tuple[str, ...] = ()  # parts of Llama's layer that the architecture lacks
    reordered: bool = False  # rows of queries and keys
    norms_added: float = 0.0  # what the file has added to the weights of norms
    layer_norms: str = ""  # config.json's field of their epsilon, where norms take the mean away

    @property
    def parts(self) -> dict[str, str]:
        return {part: name for part, name in (_PARTS | dict(self.names)).items() if part not in self.without}


_LLAMA = GgufFamily("llama", "LlamaForCausalLM", reordered=True)
_GEMMA = GgufFamily("gemma", "GemmaForCausalLM", norms_added=1.0)
_OLMO2 = GgufFamily("olmo2", "Olmo2ForCausalLM", names=_BEHIND, without=("attn_norm", "ffn_norm"))
_STACKED = {"ffn_up": "mlp.gate_up_proj"}
_ROWS = {
    "llama": _LLAMA,
    "mistral": GgufFamily("mistral", "MistralForCausalLM"),
    "qwen2": GgufFamily("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufFamily("qwen3", "Qwen3ForCausalLM"),
    "phi3": GgufFamily(
        "phi3",
        "Phi3ForCausalLM",
        names=_STACKED | {"attn_qkv": "self_attn.qkv_proj"},
        without=("attn_q", "attn_k", "attn_v", "ffn_gate"),
    ),
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, model_type="gemma2", architecture="Gemma2ForCausalLM", names=_BEFORE_AND_BEHIND),
    "gemma3": replace(_GEMMA, model_type="gemma3_text", architecture="Gemma3ForCausalLM", names=_BEFORE_AND_BEHIND),
    "granite": replace(_LLAMA, model_type="granite", architecture="GraniteForCausalLM"),
    "smollm3": replace(_LLAMA, model_type="smollm3", architecture="SmolLM3ForCausalLM"),
    "olmo2": _OLMO2,
    "glm4": GgufFamily(
        "glm4",
        "Glm4ForCausalLM",
        names=_STACKED | {"post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"},
        without=("ffn_gate",),
    ),
    "stablelm": GgufFamily("stablelm", "StableLmForCausalLM", layer_norms="layer_norm_eps"),
    "starcoder2": GgufFamily(
        "starcoder2",
        "Starcoder2ForCausalLM",
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
        without=("ffn_gate",),
        layer_norms="norm_epsilon",
    ),
    "qwen2moe": GgufFamily("qwen2_moe", "Qwen2MoeForCausalLM", names=_EXPERTS | _SHARED),
    "qwen3moe": GgufFamily("qwen3_moe", "Qwen3MoeForCausalLM", names=_EXPERTS),
    "olmoe": GgufFamily("olmoe", "OlmoeForCausalLM", names=_EXPERTS),
}


def architecture(file: GgufFile) -> str:
    found: str = file.take("general.architecture", str)
    if found not in _ROWS:
        remedy = f"Baton serves {', '.join(_ROWS)}."
        raise ModelError(file.path, "general.architecture", f"{found!r} is not supported", remedy)
    return found


def family_of(file: GgufFile) -> GgufFamily:
    """The row of a file. Mixtral has Llama's architecture, and OLMo 3 that of OLMo 2."""
    name = architecture(file)
    if name == "llama" and file.take("llama.expert_count", int, 0):
        return replace(_LLAMA, model_type="mixtral", architecture="MixtralForCausalLM", names=_MIXTRAL)
    if name == "olmo2" and file.take("olmo2.attention.sliding_window", int, 0):
        return replace(_OLMO2, model_type="olmo3", architecture="Olmo3ForCausalLM")
    return _ROWS[name]
