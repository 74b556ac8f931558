"""Checkpoints with one tensor for the matrices of all experts of a layer, as transformers 5 holds them in memory.

Taken apart they have the names of checkpoints in which each matrix has a tensor, so both have the same hash. Nothing is
copied."""

from dataclasses import replace

import numpy as np

from engine.families.family import Experts
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor
from engine.model.config import ModelConfig

_TOGETHER = "mlp."  # transformers' own name of the block


def separated(config: ModelConfig, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a tensor for each matrix of each expert, and one for each bias."""
    tensors, row = dict(checkpoint.tensors), config.row.experts
    for layer in range(config.layers):
        if row is not None and config.has_experts(layer):
            _separate(config, row, checkpoint, f"model.layers.{layer}.", tensors)
    return checkpoint.holding(tensors)


def _separate(
    config: ModelConfig, row: Experts, checkpoint: Checkpoint, layer: str, tensors: dict[str, Stored]
) -> None:
    shapes = {"gate_up_proj": (2 * config.expert_ffn, config.hidden), "down_proj": (config.hidden, config.expert_ffn)}
    parts = {"gate_up_proj": row.gate_up, "down_proj": (row.down,)}
    together, block = f"{layer}{_TOGETHER}", f"{layer}{row.block}."
    if any(f"{together}experts.{name}" in tensors for name in shapes):
        for name, shape in shapes.items():
            sides = shape[::-1] if row.inputs_first else shape
            whole = _taken(checkpoint, f"{together}experts.{name}", (config.experts, *sides), tensors)
            each = np.swapaxes(whole.values, 1, 2) if row.inputs_first else whole.values
            _place(replace(whole, values=each), f"{together}experts.{name}", f"{block}experts.", parts[name], tensors)
        if f"{together}{row.router}.weight" in tensors:
            tensors[f"{block}{row.router}.weight"] = tensors.pop(f"{together}{row.router}.weight")
    if row.biases and any(f"{together}experts.{name}_bias" in tensors for name in shapes):
        for name, (rows, _) in shapes.items():
            whole = _taken(checkpoint, f"{together}experts.{name}_bias", (config.experts, rows), tensors)
            _place(whole, f"{together}experts.{name}_bias", f"{block}experts.", parts[name], tensors)


def _taken(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], tensors: dict[str, Stored]) -> Tensor:
    """The tensor for all experts of this name, which is not in `tensors` any more."""
    stored = checkpoint.take(name, shape)
    assert isinstance(stored, Tensor)  # quantized ones are matrices, and have two sides
    del tensors[name]
    return stored


def _place(whole: Tensor, name: str, block: str, parts: tuple[str, ...], tensors: dict[str, Stored]) -> None:
    """Puts what each expert has of a tensor, [experts, outputs, ...], into `tensors`: a matrix or a bias for each
    part."""
    ending = "weight" if whole.values.ndim == 3 else "bias"
    for expert, values in enumerate(whole.values):
        for part, own in zip(parts, np.split(values, len(parts)), strict=True):
            one = f"{block}{expert}.{part}.{ending}"
            if one in tensors:
                remedy = "Keep one of the two, a tensor for each expert or one for all."
                raise ModelError(whole.path, one, f"stands also in {name}", remedy)
            tensors[one] = replace(whole, values=own)
