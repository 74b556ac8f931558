"""Frequencies of every kind of rope beside those of transformers, bit by bit."""

from typing import Any

import numpy as np
import pytest
import transformers

from engine.families.rope import Rope
from engine.model.rope import inverse_frequencies

THETAS = (1e4, 1e5, 150000.0, 5e5, 1e6, 2e6, 5e6)
DIMS = (8, 12, 16, 24, 48, 64, 96, 128, 256)
_ORIGINAL = {"original_max_position_embeddings": 1024}
_LLAMA3 = {"low_freq_factor": 1.1, "high_freq_factor": 4.7}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "default": ({}, {}),
    "linear": ({"kind": "linear", "factor": 2.3}, {"factor": 2.3}),
    "llama3": (
        {"kind": "llama3", "factor": 7.3, "original_context": 1024} | _LLAMA3,
        {"factor": 7.3} | _LLAMA3 | _ORIGINAL,
    ),
    "yarn": ({"kind": "yarn", "factor": 4.0, "original_context": 1024}, {"factor": 4.0} | _ORIGINAL),
    "yarn between dimensions": (
        {"kind": "yarn", "factor": 3.3, "original_context": 1024, "truncate": False},
        {"factor": 3.3, "truncate": False} | _ORIGINAL,
    ),
    "longrope": ({"kind": "longrope", "factor": 4.0, "original_context": 1024}, {"factor": 4.0} | _ORIGINAL),
}


@pytest.mark.parametrize("name", KINDS)
def test_frequencies_are_rounded_as_transformers_rounds_them(name: str) -> None:
    """The powers of libraries may differ in their last place, so one frequency in fifty may, by a few places; with one
    rounding at the end two in five did."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    ours, parameters = KINDS[name]
    found, expected = [], []
    for theta in THETAS:
        for dim in DIMS:
            factors = [1 + 0.37 * i for i in range(dim // 2)] if name == "longrope" else []
            both = {"short_factor": factors, "long_factor": factors} if factors else {}
            config = transformers.LlamaConfig(
                hidden_size=dim * 4,
                num_attention_heads=4,
                head_dim=dim,
                max_position_embeddings=4096,
                rope_parameters={"rope_type": name.split()[0], "rope_theta": theta} | parameters | both,
            )
            expected.append(LlamaRotaryEmbedding(config).inv_freq.numpy())
            found.append(inverse_frequencies(Rope(theta, factors=tuple(factors), **ours), dim))
    all_found, all_expected = np.concatenate(found), np.concatenate(expected)
    assert all_found.dtype == np.float32 and len(all_found) == len(THETAS) * sum(DIMS) // 2
    places = np.abs(all_found - all_expected) / np.spacing(all_expected)
    assert places.max() <= 4 and (places > 0).mean() < 0.02
