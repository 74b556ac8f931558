"""The layers that rounding follows: they compute what the model computes, for every family."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.formats.checkpoint import Checkpoint
from engine.model.config import read_config
from engine.model.layout import as_stored, read_tensors
from engine.quantization.plain_layer import FOLLOWED, PlainLayers
from engine.quantization.reading import EMBEDDING, HEAD, NORM, NORM_BIAS, SourceModel
from tests.families.folders import saved

Floats = Any
FIELDS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 20},
    "phi3": {"sliding_window": 20},
    "gemma2": {"sliding_window": 20},
    "gemma3_text": {"sliding_window": 20},
    "stablelm": {"use_qkv_bias": True},
    "qwen2_moe": {"norm_topk_prob": True, "mlp_only_layers": [1]},
    "olmoe": {"clip_qkv": 0.7},
}


def plain_logits(folder: Path, tokens: list[int]) -> Floats:
    config, checkpoint = read_config(folder), Checkpoint(folder)
    config = as_stored(config, checkpoint)
    model = SourceModel(config, read_tensors(config, checkpoint), None)
    edges = {name: model.edge(name, 0, shape[0]).reshape(shape) for name, shape in model.edges().items()}
    layers = PlainLayers.of(config, len(tokens))
    x = edges[EMBEDDING][tokens] * np.float32(config.embedding_scale)
    for layer in range(config.layers):
        x = layers.run(layer, model.layer(layer), x, lambda name, rows: None)
    if config.norm == "layer":
        x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config.eps) * (edges[NORM] + config.norms.added)
    x = x + edges[NORM_BIAS] if config.norm == "layer" else x
    logits = x @ edges.get(HEAD, edges[EMBEDDING]).T / config.logits_divisor
    return np.tanh(logits / config.logits_cap) * config.logits_cap if config.logits_cap else logits


@pytest.mark.parametrize("family", FOLLOWED)
def test_plain_layers_compute_what_the_model_computes(family: str, tmp_path: Path, engine: Any, words: Any) -> None:
    folder, prompt = saved(tmp_path / "model", family, FIELDS.get(family, {})), words(60)
    theirs = engine(folder, product_path="fp32").logits(prompt)
    assert np.abs(plain_logits(folder, prompt) - theirs).max() < 1e-3 * np.abs(theirs).max()
