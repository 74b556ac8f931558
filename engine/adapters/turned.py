"""Refuses adapters of a model whose numbers are turned (`engine/quantization/turning.py`): such a model has the same
function in other coordinates, and what an adapter adds is in those of the model that it was trained on."""

from functools import cache
from pathlib import Path

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Tensor, is_quantized, widened
from engine.model.config import read_config
from engine.model.layout import fused_tensors

_NORMS = ("input_norm", "ffn_norm", "norm")  # those of the residual stream


def refuse_turned(adapter: Path, model: Path) -> None:
    """Raises ModelError where no adapter can be computed with this model."""
    if is_turned(model):
        problem = (
            f"cannot be computed with {model.name} in four bits: that is turned, so its layers have other coordinates"
        )
        remedy = (
            "Serve the model as it is, or with quantize = int8, or merge the adapter into it before it is quantized."
        )
        raise ModelError(adapter, "model", problem, remedy)


@cache
def is_turned(model: Path) -> bool:
    """Whether the model in this folder is turned: it is quantized, and the weights of its norms are all 1."""
    tensors = Checkpoint(model).tensors
    if not any(is_quantized(tensor) for tensor in tensors.values()):
        return False
    fused = [each for each in fused_tensors(read_config(model)) if each.name.rpartition(".")[2] in _NORMS]
    norms = [tensors.get(source.name) for each in fused for source in each.sources]
    return all(isinstance(norm, Tensor) and bool((widened(norm) == 1).all()) for norm in norms)
