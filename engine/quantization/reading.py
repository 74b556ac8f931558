"""The numbers of a model, one layer at a time: as they are, or turned."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor, widened
from engine.model.config import ModelConfig
from engine.model.matrices import checked, rows_of
from engine.quantization.plain_layer import Floats
from engine.quantization.tensors import layer_tensors
from engine.quantization.turning import Doubles, ModelTurn

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
NORM_BIAS = "model.norm.bias"
_READS = dict.fromkeys("qkv", "input_layernorm") | dict.fromkeys(("gate", "up"), "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class SourceModel:
    config: ModelConfig
    tensors: Mapping[str, Stored]
    turn: ModelTurn | None  # None: the numbers stay as they are

    def edges(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what stands outside of layers; a turned head is a matrix of its own."""
        whole, width = (self.config.vocab, self.config.hidden), (self.config.hidden,)
        head = {} if self.config.tied and self.turn is None else {HEAD: whole}
        bias = {NORM_BIAS: width} if self.config.norm == "layer" else {}
        return {EMBEDDING: whole, NORM: width, **bias, **head}

    def layer(self, index: int) -> dict[str, Floats]:
        """The tensors of a layer, by what follows its prefix."""
        prefix = f"model.layers.{index}."
        names = [each.name for each in layer_tensors(self.config, index)]
        if self.turn is None:
            return {name: self.tensor(index, name) for name in names}
        raw = {name: self._numbers(f"{prefix}{name}") for name in names}
        return {name: _single(self._turned(self.turn, name, raw)) for name in raw}

    def tensor(self, index: int, name: str) -> Floats:
        """One tensor of a layer, as it is."""
        return _single(self._numbers(f"model.layers.{index}.{name}"))

    def edge(self, name: str, first: int, last: int) -> Floats:
        """Rows of the embedding or the head, or elements of the final norm."""
        turn = self.turn
        if name in (NORM, NORM_BIAS):
            numbers = self._numbers(name)[first:last]
            return _single(numbers if turn is None else np.ones_like(numbers))
        source = EMBEDDING if name == HEAD and self.config.tied else name
        rows = self._rows(source, first, last)
        if turn is None:
            return _single(rows)
        return _single(turn.reads(rows, self._numbers(NORM)) if name == HEAD else turn.embeds(rows))

    def _turned(self, turn: ModelTurn, name: str, raw: Mapping[str, Doubles]) -> Doubles:
        numbers = raw[name]
        module, _, kind = name.rpartition(".")
        if module in _READS.values():
            return np.ones_like(numbers)
        projection = module.rpartition(".")[2].removesuffix("_proj")
        if kind == "weight" and projection in _READS:
            numbers = turn.reads(numbers, raw[f"{_READS[projection]}.weight"])
        if projection == "v":
            return turn.makes_values(numbers)
        if projection == "o" and kind == "weight":
            numbers = turn.reads_values(numbers)
        return turn.writes(numbers) if projection in ("o", "down") else numbers

    def _rows(self, name: str, first: int, last: int) -> Doubles:
        return rows_of(checked(name, self.tensors[name]))(first, last).astype(np.float64)

    def _numbers(self, name: str) -> Doubles:
        stored = self.tensors[name]
        if len(stored.shape) == 2:
            return self._rows(name, 0, stored.shape[0])
        if not isinstance(stored, Tensor):
            raise ModelError(stored.path, name, f"is {stored.dtype}, and a vector has to be numbers", "Take another.")
        return widened(stored).astype(np.float64) - stored.added


def _single(numbers: Doubles) -> Floats:
    return np.ascontiguousarray(numbers, np.float32)
