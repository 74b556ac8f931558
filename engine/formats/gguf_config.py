"""The config.json of the model in a GGUF file: its metadata in the words of Hugging Face.

What llama.cpp computes and a file does not say, such as which layers of SmolLM 3 have no rope, stands here as llama.cpp
has it. Numbers are floats of four bytes in the file; the shortest decimal of each is what its maker wrote."""

from collections.abc import Callable, Mapping
from math import log, sqrt
from typing import Any

import numpy as np

from engine.formats.errors import ModelError
from engine.formats.gguf_families import architecture, family_of
from engine.formats.gguf_file import AGAIN, GgufFile
from engine.formats.gguf_scaling import refuse_other_ropes, rope_scaling

_GELU = "gelu_pytorch_tanh"
_LOCAL_THETA = 10000.0  # sliding layers of Gemma 3 have it, where the file does not say it
_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}  # layers of the 27B models, whose scores have another scale
_NEAR = 1e-4
_MOST_LAYERS = 4096
_PARTIAL = ("phi3", "glm4", "stablelm")  # architectures that may rotate a part of each head
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # they end a text, a turn, a message


class Metadata:
    """The values of a file under the keys of its architecture."""

    def __init__(self, file: GgufFile) -> None:
        self.file, self.arch = file, architecture(file)

    def whole(self, key: str, default: int | None = None) -> int:
        number: int = self.file.take(f"{self.arch}.{key}", int, default)
        return number

    def number(self, key: str, default: float | None = None) -> float:
        found: float = self.file.take(f"{self.arch}.{key}", float, default)
        return float(str(np.float32(found)))

    def has(self, key: str) -> bool:
        return f"{self.arch}.{key}" in self.file.metadata

    def refuse(self, key: str, problem: str) -> None:
        """Raises ModelError for a setting under which Baton would compute other numbers."""
        raise ModelError(self.file.path, f"{self.arch}.{key}", problem, "Take a file without it.")

    def holds(self, tensor: str) -> bool:
        """Whether the first layer has this tensor."""
        return f"blk.0.{tensor}" in self.file.tensors


def config_of(file: GgufFile) -> dict[str, Any]:
    """Raises ModelError for a model that Baton does not compute."""
    row, given = family_of(file), Metadata(file)
    hidden, heads = given.whole("embedding_length"), given.whole("attention.head_count")
    if hidden < 1 or heads < 1:
        raise ModelError(file.path, f"{given.arch}.attention.head_count", f"is {heads} for {hidden} elements", AGAIN)
    if not 1 <= (layers := given.whole("block_count")) <= _MOST_LAYERS:
        raise ModelError(file.path, f"{given.arch}.block_count", f"{layers} is not one to {_MOST_LAYERS}", AGAIN)
    head_dim = given.whole("attention.key_length", hidden // heads)
    _refuse_ropes(given, head_dim)
    config: dict[str, Any] = {
        "architectures": [row.architecture],
        "model_type": row.model_type,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": given.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": given.whole("feed_forward_length"),
        "max_position_embeddings": given.whole("context_length"),
        "rope_theta": given.number("rope.freq_base", 10000.0),
        "vocab_size": _vocabulary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
    }
    if row.layer_norms:
        config[row.layer_norms] = given.number("attention.layer_norm_epsilon")
    else:
        config["rms_norm_eps"] = given.number("attention.layer_norm_rms_epsilon")
    if (token := file.metadata.get("tokenizer.ggml.bos_token_id")) is not None:
        config["bos_token_id"] = token
    if ends := _ends(file, config["vocab_size"]):
        config["eos_token_id"] = ends
    if scaling := rope_scaling(file, given.arch, head_dim, config["rope_theta"]):
        config["rope_scaling"] = scaling
    return config | _OWN.get(row.model_type, _nothing)(given, config)


def _refuse_ropes(given: Metadata, head_dim: int) -> None:
    """Raises ModelError for a rope that this architecture does not have here."""
    refuse_other_ropes(given.file, given.arch, own_attention=given.arch == "phi3")
    rotated = given.whole("rope.dimension_count", head_dim)
    if rotated != head_dim and given.arch not in _PARTIAL:
        given.refuse("rope.dimension_count", f"rotates {rotated} of {head_dim} elements of a head")
    base = given.number("rope.freq_base", _LOCAL_THETA)
    if given.arch != "gemma3" and given.number("rope.freq_base_swa", base) != base:
        given.refuse("rope.freq_base_swa", "gives layers with windows a rope of their own")


def _ends(file: GgufFile, vocabulary: int) -> list[int]:
    """The tokens that end a generation: any of those that the file names."""
    found = dict[int, None]()
    for name in _ENDS:
        if f"tokenizer.ggml.{name}" not in file.metadata:
            continue
        token = file.take(f"tokenizer.ggml.{name}", int)
        if not 0 <= token < vocabulary:
            raise ModelError(file.path, f"tokenizer.ggml.{name}", f"{token} is none of {vocabulary} tokens", AGAIN)
        found[token] = None
    return list(found)


Config = Mapping[str, Any]
_Own = Callable[[Metadata, Config], dict[str, Any]]


def _nothing(given: Metadata, config: Config) -> dict[str, Any]:
    return {}


def _biases(given: Metadata, config: Config) -> dict[str, Any]:
    return {"attention_bias": given.holds("attn_q.bias"), "mlp_bias": given.holds("ffn_up.bias")}


def _attention_bias(given: Metadata, config: Config) -> dict[str, Any]:
    return {"attention_bias": given.holds("attn_q.bias")}


def _mistral(given: Metadata, config: Config) -> dict[str, Any]:
    return {"sliding_window": given.whole("attention.sliding_window", 0) or None}


def _partial(given: Metadata, config: Config) -> dict[str, Any]:
    """Which part of each head is rotated."""
    dim = given.whole("rope.dimension_count", config["head_dim"])
    return {"partial_rotary_factor": dim / config["head_dim"]}


def _phi3(given: Metadata, config: Config) -> dict[str, Any]:
    found = _partial(given, config) | _mistral(given, config)
    original = given.whole("rope.scaling.original_context_length", config["max_position_embeddings"])
    found["original_max_position_embeddings"] = original
    if "rope_scaling" not in config:
        return found
    stretch, stored = config["max_position_embeddings"] / original, given.number("rope.scaling.attn_factor", 1.0)
    if abs(stored - (sqrt(1 + log(stretch) / log(original)) if stretch > 1 else 1.0)) > _NEAR:
        found["rope_scaling"] = config["rope_scaling"] | {"attention_factor": stored}
    return found


def _granite(given: Metadata, config: Config) -> dict[str, Any]:
    return _biases(given, config) | {
        "embedding_multiplier": given.number("embedding_scale", 1.0),
        "attention_multiplier": given.number("attention.scale", config["head_dim"] ** -0.5),
        "residual_multiplier": given.number("residual_scale", 1.0),
        "logits_scaling": given.number("logit_scale", 1.0),
    }


def _smollm3(given: Metadata, config: Config) -> dict[str, Any]:
    return _biases(given, config) | {"no_rope_layer_interval": 4}


def _olmo3(given: Metadata, config: Config) -> dict[str, Any]:
    window, layers = given.whole("attention.sliding_window"), config["num_hidden_layers"]
    slides = given.file.take(
        "olmo2.attention.sliding_window_pattern", list, [(at + 1) % 4 != 0 for at in range(layers)]
    )
    theta = {"rope_theta": config["rope_theta"]}
    return {
        "sliding_window": window,
        "layer_types": ["sliding_attention" if each else "full_attention" for each in slides],
        "rope_parameters": {"full_attention": theta, "sliding_attention": theta},
    }


def _glm4(given: Metadata, config: Config) -> dict[str, Any]:
    if given.has("rope.dimension_sections"):
        given.refuse("rope.dimension_sections", "is that of a model with pictures")
    return _partial(given, config) | _attention_bias(given, config)


def _gemma(given: Metadata, config: Config) -> dict[str, Any]:
    return {"hidden_act": _GELU}


def _gemma_scale(given: Metadata, config: Config) -> dict[str, Any]:
    largest = config["num_hidden_layers"] == _LARGEST_GEMMAS[given.arch]
    scale = config["hidden_size"] // config["num_attention_heads"] if largest else config["head_dim"]
    return {"hidden_activation": _GELU, "query_pre_attn_scalar": scale}


def _gemma2(given: Metadata, config: Config) -> dict[str, Any]:
    return _gemma_scale(given, config) | {
        "attn_logit_softcapping": given.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": given.number("final_logit_softcapping", 30.0),
        "sliding_window": given.whole("attention.sliding_window", 4096),
    }


def _gemma3(given: Metadata, config: Config) -> dict[str, Any]:
    found = _gemma_scale(given, config) | {"rope_local_base_freq": given.number("rope.freq_base_swa", _LOCAL_THETA)}
    if given.has("final_logit_softcapping"):
        found["final_logit_softcapping"] = given.number("final_logit_softcapping")
    if given.has("attention.sliding_window"):
        return found | {"sliding_window": given.whole("attention.sliding_window"), "sliding_window_pattern": 6}
    return found | {"layer_types": ["full_attention"] * config["num_hidden_layers"]}


def _stablelm(given: Metadata, config: Config) -> dict[str, Any]:
    return _partial(given, config) | {
        "use_qkv_bias": given.holds("attn_q.bias"),
        "use_parallel_residual": given.file.take("stablelm.use_parallel_residual", bool, False),
        "qk_layernorm": given.holds("attn_q_norm.weight"),
    }


def _starcoder2(given: Metadata, config: Config) -> dict[str, Any]:
    return {"use_bias": given.holds("attn_q.bias"), "hidden_act": _GELU}


def _experts(given: Metadata, config: Config) -> dict[str, Any]:
    return {"num_experts": given.whole("expert_count"), "num_experts_per_tok": given.whole("expert_used_count")}


def _mixtral(given: Metadata, config: Config) -> dict[str, Any]:
    found = _experts(given, config)
    return {"num_local_experts": found["num_experts"], "num_experts_per_tok": found["num_experts_per_tok"]}


def _qwen2_moe(given: Metadata, config: Config) -> dict[str, Any]:
    return _experts(given, config) | {
        "moe_intermediate_size": _width(given, "ffn_down_exps", "expert_feed_forward_length"),
        "shared_expert_intermediate_size": _width(given, "ffn_down_shexp", "expert_shared_feed_forward_length"),
        "norm_topk_prob": given.file.take("qwen2moe.expert_weights_norm", bool, False),
        "qkv_bias": given.holds("attn_q.bias"),
    }


def _qwen3_moe(given: Metadata, config: Config) -> dict[str, Any]:
    return _experts(given, config) | {
        "moe_intermediate_size": _width(given, "ffn_down_exps", "expert_feed_forward_length"),
        "norm_topk_prob": given.file.take("qwen3moe.expert_weights_norm", bool, True),
        "attention_bias": given.holds("attn_q.bias"),
    }


def _olmoe(given: Metadata, config: Config) -> dict[str, Any]:
    found = _experts(given, config) | _attention_bias(given, config)
    if given.has("attention.clamp_kqv"):
        found["clip_qkv"] = given.number("attention.clamp_kqv")
    return found | {"norm_topk_prob": given.file.take("olmoe.expert_weights_norm", bool, False)}


def _width(given: Metadata, tensor: str, key: str) -> int:
    """The inner width of experts, which files of 2024 show only by the tensor."""
    stored = given.file.tensors.get(f"blk.0.{tensor}.weight")
    return given.whole(key, stored.shape[-1] if stored is not None else None)


def _vocabulary(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(file.path, "token_embd.weight", "tensor is missing", AGAIN)
    return embedding.shape[0]


_OWN: dict[str, _Own] = {
    "llama": _biases,
    "mistral": _mistral,
    "qwen3": _attention_bias,
    "phi3": _phi3,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "granite": _granite,
    "smollm3": _smollm3,
    "olmo2": _attention_bias,
    "olmo3": _olmo3,
    "glm4": _glm4,
    "stablelm": _stablelm,
    "starcoder2": _starcoder2,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "olmoe": _olmoe,
}
