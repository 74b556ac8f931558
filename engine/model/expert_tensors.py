"""Checkpoints with one tensor for the matrices of all experts of a layer, as transformers 5 holds them in memory.

Taken apart they have the names of checkpoints in which each matrix has a tensor, so both have the same hash. Nothing is
copied."""

from dataclasses import replace

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor
from engine.model.config import ModelConfig

_TOGETHER = "mlp."  # transformers' own name of the block


def separated(config: ModelConfig, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a tensor for each matrix of each expert."""
    tensors = dict(checkpoint.tensors)
    for layer in range(config.layers):
        if config.has_experts(layer):
            _separate(config, checkpoint, f"model.layers.{layer}.", tensors)
    return checkpoint.holding(tensors)


def _separate(config: ModelConfig, checkpoint: Checkpoint, layer: str, tensors: dict[str, Stored]) -> None:
    row, together = config.row.experts, f"{layer}{_TOGETHER}"
    assert row is not None
    block, width, hidden = f"{layer}{row.block}.", config.expert_ffn, config.hidden
    if f"{together}experts.gate_up_proj" not in tensors:
        return
    shapes = {"gate_up_proj": (2 * width, hidden), "down_proj": (hidden, width)}
    for name, shape in shapes.items():
        stored = checkpoint.take(f"{together}experts.{name}", (config.experts, *shape))
        assert isinstance(stored, Tensor)  # quantized ones are matrices, and have two sides
        del tensors[f"{together}experts.{name}"]
        parts = row.gate_up if name == "gate_up_proj" else (row.down,)
        rows = shape[0] // len(parts)
        for expert in range(config.experts):
            for number, part in enumerate(parts):
                one = f"{block}experts.{expert}.{part}.weight"
                if one in tensors:
                    remedy = "Keep one of the two, a tensor for each expert or one for all."
                    raise ModelError(stored.path, one, f"stands also in {together}experts.{name}", remedy)
                values = stored.values[expert, number * rows : (number + 1) * rows]
                tensors[one] = replace(stored, values=values)
    if f"{together}gate.weight" in tensors:
        tensors[f"{block}gate.weight"] = tensors.pop(f"{together}gate.weight")
