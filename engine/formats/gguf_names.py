"""GGUF's names of tensors and metadata in the words of Hugging Face: config.json, and each tensor's name there.

llama.cpp reorders the rows of llama's queries and keys for its own rotary layout; `rows_of` gives the order back."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_file import GgufFile

_FAMILIES = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_REORDERED = ("llama",)  # architectures whose queries and keys are reordered
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
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
_FREQUENCIES = "rope_freqs.weight"  # factors of llama 3's rotary table


def config_of(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model in this file. Raises ModelError for an architecture that Baton does not compute."""
    family = architecture(file)
    hidden, heads = _whole(file, "embedding_length"), _whole(file, "attention.head_count")
    head_dim = file.take(f"{family}.attention.key_length", int, hidden // heads)
    config: dict[str, Any] = {
        "architectures": [_CLASSES[family]],
        "model_type": _FAMILIES[family],
        "hidden_size": hidden,
        "num_hidden_layers": _whole(file, "block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": file.take(f"{family}.attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "intermediate_size": _whole(file, "feed_forward_length"),
        "max_position_embeddings": _whole(file, "context_length"),
        "rms_norm_eps": round(file.take(f"{family}.attention.layer_norm_rms_epsilon", float), 9),
        "rope_theta": file.take(f"{family}.rope.freq_base", float, 10000.0),
        "vocab_size": _vocabulary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "hidden_act": "silu",
    }
    for key, name in (("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id")):
        if (token := file.metadata.get(f"tokenizer.ggml.{key}")) is not None:
            config[name] = token
    if family == "llama" and "blk.0.attn_q.bias" in file.tensors:
        config["attention_bias"] = True
    if family == "mistral" and (key := "mistral.attention.sliding_window") in file.metadata:
        config["sliding_window"] = file.take(key, int)
    if scaling := _scaling(file, family, head_dim, config["rope_theta"]):
        config["rope_scaling"] = scaling
    return config


def architecture(file: GgufFile) -> str:
    found: str = file.take("general.architecture", str)
    if found not in _FAMILIES:
        raise ModelError(
            file.path, "general.architecture", f"{found!r} is not supported", f"Baton serves {', '.join(_FAMILIES)}."
        )
    return found


def named(file: GgufFile) -> Iterator[tuple[str, str]]:
    """Each tensor's name in the file and in Hugging Face's form."""
    for name in file.tensors:
        if name == _FREQUENCIES:
            continue
        if name in _WHOLE:
            yield name, _WHOLE[name]
            continue
        block, _, rest = name.partition(".")
        number, _, part = rest.partition(".")
        part, _, kind = part.rpartition(".")
        if block != "blk" or not number.isdigit() or part not in _PARTS:
            raise ModelError(
                file.path, name, "is no tensor of this architecture", "Take a file that Baton can compute."
            )
        yield name, f"model.layers.{number}.{_PARTS[part]}.{kind}"


def rows_of(file: GgufFile, name: str, rows: int) -> NDArray[np.int64] | None:
    """Where each row of a tensor stands in the file; None: in its own place."""
    if architecture(file) not in _REORDERED or not name.endswith(
        (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")
    ):
        return None
    family, query = architecture(file), ".attn_q." in name
    heads = _whole(file, "attention.head_count")
    count = heads if query else file.take(f"{family}.attention.head_count_kv", int, heads)
    if rows % (2 * count):
        raise ModelError(
            file.path, name, f"has {rows} rows for {count} heads", "The file is damaged; download it again."
        )
    places = np.arange(rows).reshape(count, rows // count // 2, 2).swapaxes(1, 2)
    return places.reshape(-1)


def _whole(file: GgufFile, key: str) -> int:
    number: int = file.take(f"{architecture(file)}.{key}", int)
    return number


def _vocabulary(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(file.path, "token_embd.weight", "tensor is missing", "The file is damaged; download it again.")
    return embedding.shape[0]


def _scaling(file: GgufFile, family: str, head_dim: int, theta: float) -> dict[str, Any] | None:
    kind = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": file.take(f"{family}.rope.scaling.factor", float)}
    if kind != "none":
        problem = f"{kind!r} is not supported"
        raise ModelError(file.path, f"{family}.rope.scaling.type", problem, "Take a file without it.")
    if _FREQUENCIES not in file.tensors:
        return None
    return _llama3(file, head_dim, theta)


def _llama3(file: GgufFile, head_dim: int, theta: float) -> dict[str, Any]:
    """The parameters from which llama.cpp has computed these factors: those of Llama 3.1 and 3.2."""
    tensor = file.tensors[_FREQUENCIES]
    if tensor.kind != "F32" or tensor.shape != (head_dim // 2,):
        raise ModelError(file.path, _FREQUENCIES, f"is {tensor.kind} {tensor.shape}", "Download the file again.")
    factors = tensor.raw.reshape(-1).view(np.float32)
    original = 8192
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    for factor in (8.0, 32.0, float(factors.max())):
        low, high = 1.0, 4.0
        smooth = (original / wavelengths - low) / (high - low)
        middle = 1 / ((1 - smooth) / factor + smooth)
        wanted = np.where(wavelengths < original / high, 1.0, np.where(wavelengths > original / low, factor, middle))
        if np.allclose(factors, wanted, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelError(file.path, _FREQUENCIES, "are factors of an unknown scaling", "Take the model's safetensors.")
