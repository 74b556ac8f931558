"""The tensors of one layer as rounding sees them: which are rounded, to what form, and by whose inputs."""

import re
from dataclasses import dataclass
from functools import lru_cache

from engine.model.config import ModelConfig
from engine.model.layout import fused_tensors


@dataclass(frozen=True, slots=True)
class LayerTensor:
    name: str  # what follows the layer's prefix: mlp.up_proj.weight
    columns: int  # 0: a vector
    fused: str  # name of the tensor that it becomes a part of when it is packed, see `engine/model/layout.py`
    inputs: str  # what it reads: the fused name, and for an expert its number behind it
    exact: bool  # a matrix that is never rounded

    @property
    def rounded(self) -> bool:
        return self.columns > 0 and not self.exact

    @property
    def module(self) -> str:
        return self.name.removesuffix(".weight")

    @property
    def pattern(self) -> str:
        """A regular expression for the module in all layers, and for all experts."""
        return re.sub(r"\\\.\d+(?=\\\.)", r"\\.\\d+", re.escape(self.module).replace(r"\_", "_"))


def layer_tensors(config: ModelConfig, layer: int) -> tuple[LayerTensor, ...]:
    return _by_layer(config)[layer]


@lru_cache(maxsize=2)
def _by_layer(config: ModelConfig) -> tuple[tuple[LayerTensor, ...], ...]:
    found: list[list[LayerTensor]] = [[] for _ in range(config.layers)]
    for fused in fused_tensors(config):
        layer, dot, kind = fused.name.partition(".")
        if not dot:  # it stands outside of layers
            continue
        share = len(fused.sources) // fused.copies if fused.copies else 0
        for number, source in enumerate(fused.sources):
            inputs = f"{kind}.{number // share}" if share else kind
            name = source.name.removeprefix(f"model.layers.{layer}.")
            found[int(layer)].append(LayerTensor(name, source.columns, kind, inputs, fused.exact))
    return tuple(map(tuple, found))
