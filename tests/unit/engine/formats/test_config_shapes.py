"""Configurations drawn at random: whatever is served has the numbers that transformers reads from it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import transformers

from engine.builtin import tiny
from engine.formats.errors import ModelError
from engine.model.config import read_config

ABSENT = object()
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FIELDS: dict[str, list[Any]] = {
    "sliding_window": [ABSENT, None, 16, 512, 4096],
    "use_sliding_window": [ABSENT, True, False],
    "max_window_layers": [ABSENT, 0, 1, 2, 28],
    "layer_types": [ABSENT, None, ["full_attention"] * 2, ["full_attention", "sliding_attention"]],
    "rope_scaling": [ABSENT, None, {"type": "linear", "factor": 2.0}, {"rope_type": "default"}, LLAMA3],
    "rope_parameters": [
        ABSENT,
        None,
        {"rope_type": "default", "rope_theta": 5e4},
        {"rope_type": "linear", "factor": 4.0, "rope_theta": 3e4},
    ],
    "rope_theta": [ABSENT, 1e6, 10000],
    "head_dim": [ABSENT, 16],
    "num_key_value_heads": [2],
    "tie_word_embeddings": [ABSENT, True, False],
    "hidden_act": ["silu", "swish"],
    "rms_norm_eps": [ABSENT, 1e-5],
}


@pytest.mark.parametrize("family", ["llama2", "mistral", "qwen2", "qwen3"])
def test_served_configurations_are_read_alike(family: str, tmp_path: Path) -> None:
    folder, draw, served = tiny(tmp_path, "llama2" if family == "mistral" else family), random.Random(family), 0
    windowed = 0
    plain = json.loads((folder / "config.json").read_text())
    if family == "mistral":
        plain |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    for _ in range(150):
        chosen = plain | {name: draw.choice(values) for name, values in FIELDS.items()}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in chosen.items() if v is not ABSENT}))
        try:
            ours = read_config(folder)
        except ModelError as error:
            assert error.field in ("layer_types", "sliding_window", "use_sliding_window")
            continue
        theirs = transformers.AutoConfig.from_pretrained(folder)
        served += 1
        rope = theirs.rope_parameters
        dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
        assert (ours.kv_heads, ours.head_dim, ours.eps) == (theirs.num_key_value_heads, dim, theirs.rms_norm_eps)
        assert ours.tied == theirs.tie_word_embeddings
        kind = "none" if rope["rope_type"] == "default" else rope["rope_type"]
        assert (ours.rope.theta, ours.rope.kind, ours.rope.factor) == (
            rope["rope_theta"],
            kind,
            rope.get("factor", 1.0),
        )
        kinds = getattr(theirs, "layer_types", None) or ["sliding_attention"] * ours.layers
        window = None if family == "llama2" else theirs.sliding_window
        windows = tuple((window or 0) if kind == "sliding_attention" else 0 for kind in kinds)
        hides = window is not None and window < ours.context and any(windows)
        assert ours.windows == (windows if hides else ())
        windowed += bool(ours.windows)
    assert served > 40
    assert family == "llama2" or windowed
