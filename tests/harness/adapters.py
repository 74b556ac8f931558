"""Adapters in PEFT's form with random numbers, and the model that each makes when it is merged: W + scale * B A."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.adapters.modules import adapted_products
from engine.formats.checkpoint import Checkpoint, read_file
from engine.formats.stored import Tensor, widened
from engine.formats.writing import stored, write_tensors
from engine.model.config import read_config

EVERY = ()  # all modules of a family, whatever it calls them
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def make_adapter(
    folder: Path,
    model: Path,
    *,
    seed: int = 0,
    rank: int = 8,
    targets: Sequence[str] = ALL,
    dtype: str = "fp32",
    size: float = 1.0,
    ranks: dict[str, int] | None = None,
    **settings: Any,
) -> Path:
    """A folder with an adapter of this model. `size`: how much it changes products; `ranks`: those of some modules;
    `settings`: further fields of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    given["target_modules"] = list(targets) if targets is not EVERY else "all-linear"
    settings = given | {"rank_pattern": ranks or {}, "inference_mode": True, "lora_dropout": 0.1} | settings
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    random, tensors = np.random.default_rng(seed), dict[str, tuple[str, Any]]()
    for product in adapted_products(read_config(model)):
        for module, source in product.parts.items():
            if targets is not EVERY and module.rpartition(".")[2] not in targets:
                continue
            own = (ranks or {}).get(module.rpartition(".")[2], rank)
            for name, shape in (("A", (own, source.columns)), ("B", (source.rows, own))):
                values = random.standard_normal(shape, np.float32) * np.float32(size / shape[1] ** 0.5 / 2)
                tensors[f"{PREFIX}{module}.lora_{name}.weight"] = dtype, stored(values, dtype)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    return folder


def merge(model: Path, adapter: Path, out: Path, scales: Any) -> Path:
    """The model with the adapter merged into its weights, computed in float64. `scales`: of a module by its name."""
    shutil.copytree(model, out)
    lora, tensors = read_file(adapter / "adapter_model.safetensors"), dict[str, tuple[str, Any]]()
    for name, tensor in Checkpoint(model).tensors.items():
        assert isinstance(tensor, Tensor) and tensor.dtype == "fp32"
        module = name.removesuffix(".weight")
        values = tensor.values
        if f"{PREFIX}{module}.lora_A.weight" in lora:
            down, up = (widened(lora[f"{PREFIX}{module}.lora_{each}.weight"]).astype(np.float64) for each in "AB")
            values = (values + scales(module) * (up @ down)).astype(np.float32)
        tensors[name] = "fp32", values
    write_tensors(out / "model.safetensors", tensors)
    return out
