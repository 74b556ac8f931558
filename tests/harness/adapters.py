"""Adapters in PEFT's form with random numbers, and the model that each makes when it is merged: W + scale * B A."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.adapters.modules import EMBEDDING, adapted_products, edge_modules, expert_products
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
    saved: Sequence[str] = (),
    **settings: Any,
) -> Path:
    """A folder with an adapter of this model. `size`: how much it changes products; `ranks`: those of some modules;
    `saved`: modules that it holds as a whole; `settings`: further fields of adapter_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    given["target_modules"] = list(targets) if targets is not EVERY else "all-linear"
    settings = given | {"rank_pattern": ranks or {}, "inference_mode": True, "lora_dropout": 0.1} | settings
    settings["modules_to_save"] = list(saved) or None
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    config, edges = read_config(model), edge_modules(read_config(model))
    products = (*adapted_products(config), *expert_products(config))
    inner = {module: source for product in products for module, source in product.parts.items()}
    random, tensors = np.random.default_rng(seed), dict[str, tuple[str, Any]]()

    def draw(name: str, shape: tuple[int, int], inputs: int) -> None:
        values = random.standard_normal(shape, np.float32) * np.float32(size / inputs**0.5 / 2)
        tensors[f"{PREFIX}{name}"] = dtype, stored(values, dtype)

    for module, source in (inner if targets is EVERY else inner | edges).items():
        last = module.rpartition(".")[2]
        if targets is not EVERY and last not in targets:
            continue
        own, looked_up = (ranks or {}).get(last, rank), module == EMBEDDING
        down, up = ("lora_embedding_A", "lora_embedding_B") if looked_up else ("lora_A.weight", "lora_B.weight")
        draw(f"{module}.{down}", (own, source.columns), 4 if looked_up else source.columns)
        draw(f"{module}.{up}", (source.rows, own), own)
    for module in edges:
        if module.rpartition(".")[2] in saved:
            draw(f"{module}.weight", (config.vocab, config.hidden), config.hidden)
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
