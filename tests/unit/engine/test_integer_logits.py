"""The logits of integer products for fixed inputs, by their hashes in docs/gpu.md: whoever writes kernels for another
device compares with these. Weights are made from a formula, so every machine makes the same folder."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from tests.unit.engine.quantized_files import Array, words, write

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"
HIDDEN, HEADS, KV_HEADS, DIM, FFN, VOCAB, LAYERS, GROUP = 256, 4, 2, 64, 512, 262, 2, 32
TOKENS = [(7 * place * place + 3 * place) % VOCAB for place in range(48)]
SHAPES = {
    "self_attn.q_proj": (HEADS * DIM, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * DIM, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * DIM),
    "mlp.gate_proj": (FFN, HIDDEN),
    "mlp.up_proj": (FFN, HIDDEN),
    "mlp.down_proj": (HIDDEN, FFN),
}


def drawn(seed: int, *shape: int) -> Array:
    """Numbers from 0 to 65535: the upper bits of a linear congruential generator, one step for each element."""
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)
        mixed = (steps ^ (steps >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return (mixed >> np.uint64(48)).astype(np.int64).reshape(shape)


def halves(numbers: Array) -> Array:
    """bf16, for numbers that it holds."""
    return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def folder_of(folder: Path, scheme: str) -> Path:
    tensors = {
        "model.embed_tokens.weight": halves((drawn(1, VOCAB, HIDDEN) % 255 - 127) / 128),
        "lm_head.weight": halves((drawn(2, VOCAB, HIDDEN) % 255 - 127) / 1024),
        "model.norm.weight": halves(np.ones(HIDDEN)),
    }
    for layer in range(LAYERS):
        place = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{place}.{norm}.weight"] = halves(np.ones(HIDDEN))
        for number, (name, (n, k)) in enumerate(SHAPES.items()):
            seed, module = 100 * layer + 10 * number + 3, f"{place}.{name}"
            if scheme == "w8a8":
                tensors[f"{module}.weight"] = (drawn(seed, n, k) % 255 - 127).astype(np.int8)
                tensors[f"{module}.weight_scale"] = halves((drawn(seed + 1, n, 1) % 64 + 64) / 2**17)
            else:
                tensors[f"{module}.weight_packed"] = words(drawn(seed, n, k) % 16, 4, 1)
                factors = drawn(seed + 1, n, k // GROUP) % 15 + 1
                tensors[f"{module}.weight_scale"] = halves(factors / 2**13)
                tensors[f"{module}.weight_shape"] = np.array([n, k], np.int64)
    kind = "int-quantized" if scheme == "w8a8" else "pack-quantized"
    settings = {"quant_method": "compressed-tensors", "format": kind, "config_groups": {}, "ignore": ["lm_head"]}
    write(folder, tensors, settings)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": HIDDEN,
        "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": DIM,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 128, "rms_norm_eps": 2.0**-20,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder


@pytest.mark.parametrize("scheme", ["w8a8", "w4a8"])
def test_the_logits_have_the_hash_that_the_page_says(tmp_path, engine, scheme):
    one = engine(folder_of(tmp_path / "model", scheme))
    assert one.weights.products == scheme
    logits = one.logits(TOKENS)
    assert np.isfinite(logits).all() and logits.std() > 0.1, "hardly zero"
    found = blake3(logits.tobytes()).hexdigest(16)
    (said,) = re.findall(rf"^\| `{scheme}` \| `([0-9a-f]{{32}})` \|", PAGE.read_text(), re.MULTILINE)
    assert found == said
