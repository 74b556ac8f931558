"""PEFT folders: what is served, and what is refused by its name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.adapters.reading import TENSORS, read_adapter
from engine.builtin import tiny
from engine.formats.checkpoint import read_file
from engine.formats.errors import ModelError
from engine.formats.writing import write_tensors
from engine.model.config import ModelConfig, read_config
from tests.harness.adapters import ALL, PREFIX, make_adapter

LAYER = f"{PREFIX}model.layers.0."


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama3")


@pytest.fixture
def config(model: Path) -> ModelConfig:
    return read_config(model)


def configured(folder: Path, **changes: Any) -> None:
    place = folder / "adapter_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))


def with_tensors(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    tensors = {name: (each.dtype, each.values) for name, each in read_file(folder / TENSORS).items()}
    change(tensors)
    aside = folder / "aside"
    write_tensors(aside, tensors)
    aside.rename(folder / TENSORS)


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def change(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def not_a_number(tensors: dict[str, Any]) -> None:
    dtype, values = tensors[f"{LAYER}mlp.up_proj.lora_B.weight"]
    values = values.copy()
    values[3, 1] = np.nan
    tensors[f"{LAYER}mlp.up_proj.lora_B.weight"] = dtype, values


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "dora": (lambda folder: configured(folder, use_dora=True), "use_dora: is on: DoRA"),
    "biases": (lambda folder: configured(folder, bias="all"), "bias: 'all' is not none"),
    "other weights": (
        lambda folder: configured(folder, init_lora_weights="pissa_niter_4"),
        "init_lora_weights: 'pissa",
    ),
    "an unknown field": (lambda folder: configured(folder, use_magic={"a": 1}), "use_magic: is .*does not compute"),
    "another method": (lambda folder: configured(folder, peft_type="IA3"), "peft_type: 'IA3' is not LORA"),
    "a target": (lambda folder: configured(folder, target_modules=["q_proj", "c_attn"]), "target_modules: 'c_attn'"),
    "a lost target": (
        lambda folder: with_tensors(folder, renamed("o_proj", "q_projx")) or configured(folder),
        "belongs to .*q_projx, which the model lacks",
    ),
    "a module": (lambda folder: with_tensors(folder, renamed("layers.1", "layers.7")), "belongs to model.layers.7"),
    "a norm": (
        lambda folder: with_tensors(folder, renamed("mlp.up_proj", "input_layernorm")),
        "belongs to .*input_layernorm, in which no adapter is computed.*merge_and_unload",
    ),
    "half a pair": (
        lambda folder: with_tensors(folder, lambda found: found.pop(f"{LAYER}mlp.up_proj.lora_A.weight")),
        "mlp.up_proj: has one of lora_A and lora_B only",
    ),
    "magnitudes": (
        lambda folder: with_tensors(folder, renamed("lora_A.weight", "lora_magnitude_vector")),
        "is neither lora_A nor lora_B",
    ),
    "a rank": (
        lambda folder: configured(folder, r=9),
        r"lora_A.weight: has shape \[8, 64\]; rank and model say \[9, 64\]",
    ),
    "a large rank": (lambda folder: configured(folder, r=300), "has rank 300, more than the 256"),
    "no scale": (lambda folder: configured(folder, lora_alpha=0), "lora_alpha: 0 is not a positive number"),
    "a pattern": (lambda folder: configured(folder, rank_pattern={"(": 3}), r"rank_pattern: '\(' is no pattern"),
    "NaN": (lambda folder: with_tensors(folder, not_a_number), r"up_proj.lora_B.weight: is nan at \[3, 1\]"),
    "a program": (
        lambda folder: (folder / TENSORS).rename(folder / "adapter_model.bin"),
        "adapter_model.bin can hold programs.*Convert it once",
    ),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), "is missing. Name a PEFT folder"),
    "no configuration": (
        lambda folder: (folder / "adapter_config.json").unlink(),
        "does not exist. Name a PEFT folder",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_computed_is_refused_by_its_name(
    fault: str, model: Path, config: ModelConfig, tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "adapter", model)
    read_adapter(folder, config)
    change, message = FAULTS[fault]
    change(folder)
    with pytest.raises(ModelError, match=f"(?s){message}"):
        read_adapter(folder, config)


def test_more_than_its_targets_is_refused(model: Path, config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", model)
    configured(folder, target_modules=[name for name in ALL if name != "down_proj"])
    words = "target_modules: does not name model.layers.0.mlp.down_proj, of which adapter_model.safetensors has tensors"
    with pytest.raises(ModelError, match=words):
        read_adapter(folder, config)


@pytest.mark.parametrize("alpha", [1e39, 10**400])
@pytest.mark.parametrize("field", ["lora_alpha", "alpha_pattern"])
def test_a_scale_that_is_infinite_in_fp32_is_refused(
    field: str, alpha: float, model: Path, config: ModelConfig, tmp_path: Path
) -> None:
    folder = make_adapter(tmp_path / "adapter", model)
    configured(folder, **{field: alpha if field == "lora_alpha" else {"q_proj": alpha}})
    with pytest.raises(ModelError, match=f"{field}.*: 10*.* is not a positive number that fp32 holds"):
        read_adapter(folder, config)


def test_an_adapter_of_another_model_is_refused_by_tensor(model: Path, tmp_path: Path) -> None:
    other = tiny(tmp_path / "other", "llama3", hidden=96)
    with pytest.raises(ModelError, match=r"has shape .*; rank and model say"):
        read_adapter(make_adapter(tmp_path / "adapter", other), read_config(model))


def test_a_rank_above_the_setting_is_refused_with_the_setting(model: Path, config: ModelConfig, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", model, rank=16)
    with pytest.raises(ModelError, match=r"more than the 8 that max_lora_rank allows\. Raise it"):
        read_adapter(folder, config, most_rank=8)


def test_the_hash_is_of_the_content_alone(model: Path, config: ModelConfig, tmp_path: Path) -> None:
    one = make_adapter(tmp_path / "one", model)
    digest = read_adapter(one, config).digest
    twin = Path(shutil.copytree(one, tmp_path / "twin"))
    configured(twin, base_model_name_or_path="a/b", lora_dropout=0.3, task_type="CAUSAL_LM", r=8)
    assert read_adapter(twin, config).digest == digest
    for number, change in enumerate(({"lora_alpha": 17}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1}})):
        other = Path(shutil.copytree(one, tmp_path / f"other{number}"))
        configured(other, **change)
        assert read_adapter(other, config).digest != digest
    assert read_adapter(make_adapter(tmp_path / "drawn", model, seed=1), config).digest != digest


def test_stacked_projections_are_adapted_as_the_family_names_them(tmp_path: Path) -> None:
    """Phi's qkv_proj is one module for queries, keys and values."""
    from engine.adapters.modules import adapted_products

    folder = tiny(tmp_path / "phi", "llama3")
    place = folder / "config.json"
    changes = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_scaling": None, "sliding_window": None}
    place.write_text(json.dumps(json.loads(place.read_text()) | changes))
    config = read_config(folder)
    modules = [list(each.parts) for each in adapted_products(config)][:4]
    prefix = "model.layers.0."
    assert modules == [
        [f"{prefix}self_attn.qkv_proj"],
        [f"{prefix}self_attn.o_proj"],
        [f"{prefix}mlp.gate_up_proj"],
        [f"{prefix}mlp.down_proj"],
    ]
    adapter = make_adapter(tmp_path / "a", folder, targets=("qkv_proj", "gate_up_proj"))
    assert sum(each is not None for each in read_adapter(adapter, config).deltas) == 4
