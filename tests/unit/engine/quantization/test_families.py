"""Every family in eight and four bits: what the folder holds, what it stands for, and what it still answers."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import StoredMatrix, Tensor, widened
from engine.integers.numbers import dequantized
from engine.model.config import read_config
from engine.model.layout import as_stored, read_tensors
from engine.model.weights import open_weights
from engine.quantization.folder import quantize
from engine.quantization.plain_layer import FOLLOWED
from engine.quantization.tensors import layer_tensors
from tests.families.folders import OWN, saved
from tests.unit.engine.quantization.test_plain_layers import plain_logits

EXPERTS = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
FIELDS: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"mlp_only_layers": [1], "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96},
    "stablelm": {"use_qkv_bias": True},
}


def windows() -> Any:
    return np.random.default_rng(0).integers(0, 262, (6, 96)).astype(np.int32)


@pytest.mark.parametrize("target", ["int8", "int4"])
@pytest.mark.parametrize("family", FOLLOWED)
def test_a_family_is_rounded_and_its_folder_is_what_it_says(
    family: str, target: str, tmp_path: Path, engine: Any, words: Any
) -> None:
    folder, out = saved(tmp_path / "model", family, FIELDS.get(family, {})), tmp_path / "out"
    changes = list(quantize(folder, out, target, tmp_path / "cache", windows()))
    config = read_config(out)
    assert len(changes) == config.layers and max(each.share for each in changes) < (0.02 if target == "int8" else 0.3)
    checkpoint = Checkpoint(out)
    config = as_stored(config, checkpoint)
    tensors = read_tensors(config, checkpoint)
    settings = json.loads((out / "config.json").read_text())["quantization_config"]
    groups = [(each["weights"], pattern) for each in settings["config_groups"].values() for pattern in each["targets"]]
    for layer in range(config.layers):
        for each in layer_tensors(config, layer):
            stored, module = tensors[f"model.layers.{layer}.{each.name}"], f"model.layers.{layer}.{each.module}"
            fitting = [weights for weights, pattern in groups if re.match(pattern.removeprefix("re:"), module)]
            assert len(fitting) == each.rounded and isinstance(stored, StoredMatrix) is each.rounded, each.name
            if isinstance(stored, StoredMatrix):
                assert fitting[0]["num_bits"] == (4 if stored.form.scheme == "int4" else 8)
            assert not each.exact or any(re.match(one.removeprefix("re:"), module) for one in settings["ignore"])
    prompt = words(60)
    ours, widened_ones = engine(out), engine(out, product_path="fp32").logits(prompt)
    assert (ours.logits(prompt, chunk=7) == ours.logits(prompt)).all()
    assert np.abs(plain_logits(out, prompt) - widened_ones).max() < 1e-3 * np.abs(widened_ones).max()


@pytest.mark.parametrize("target", ["int8", "int4"])
@pytest.mark.parametrize("family", sorted(set(OWN) - set(FOLLOWED)))
def test_a_family_whose_layers_are_not_followed_is_refused_by_name(family: str, target: str, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", family, {"num_hidden_layers": 2})
    with pytest.raises(ModelError, match=f"does not follow the layers of the family {family}"):
        list(quantize(folder, tmp_path / "out", target, tmp_path / "cache", windows()))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", EXPERTS)
def test_routers_and_vectors_keep_their_bits(family: str, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model", family, FIELDS.get(family, {})), tmp_path / "out"
    list(quantize(folder, out, "int4", tmp_path / "cache", windows()))
    before, after = (read_tensors(read_config(each), Checkpoint(each)) for each in (folder, out))
    kept = [f"model.layers.0.{each.name}" for each in layer_tensors(read_config(folder), 0) if not each.rounded]
    assert any(name.endswith("gate.weight") for name in kept)
    for name in kept:
        one, other = before[name], after[name]
        assert isinstance(one, Tensor) and isinstance(other, Tensor)
        assert widened(one).tobytes() == widened(other).tobytes()


def test_compensation_follows_what_each_expert_reads(tmp_path: Path) -> None:
    """The mean error of what an expert computes on rows of its own is less than with the nearest values."""
    folder = saved(tmp_path / "model", "qwen3_moe", {})
    for name, text in (("own", windows()), ("other", np.zeros((1, 2), np.int32))):
        list(quantize(folder, tmp_path / name, "int4", tmp_path / "cache", text))
    one, other = (
        Checkpoint(tmp_path / name).tensors["model.layers.1.mlp.experts.3.up_proj.weight"] for name in ("own", "other")
    )
    assert isinstance(one, StoredMatrix) and isinstance(other, StoredMatrix)
    assert not np.array_equal(dequantized(one.read()), dequantized(other.read()))
    assert open_weights(tmp_path / "own", tmp_path / "cache").products.startswith("w4a8")
