"""From a model folder to weights on the device, with the same checks and the same hash as on a CPU.

Nothing is packed: the kernels read matrices as the checkpoint holds them, as rows of bf16. q, k and v lie one behind
the other, as do gate and up, so that one product reads them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import Stored, Tensor, widened
from engine.model.config import ModelConfig, read_config
from engine.model.digest import locked
from engine.model.layout import Fused, as_stored, fused_tensors, read_tensors, weights_dtype
from engine.model.model_hash import hash_model
from engine.model.rope import rotary_tables

_WINDOWS = "windows that hide a token within the context"


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """Matrices are bf16 [outputs, inputs], vectors float32."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    ffn_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    config: ModelConfig
    dtype: str  # dtype of the checkpoint
    model_hash: str
    embed: torch.Tensor
    head: torch.Tensor  # the embedding itself when tied
    norm: torch.Tensor
    cos: torch.Tensor  # float32 [context, head_dim / 2]
    sin: torch.Tensor
    layers: tuple[DeviceLayer, ...]

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def nbytes(self) -> int:
        tables = (self.cos, self.sin) if self.config.tied else (self.cos, self.sin, self.embed)
        return self.read_bytes + sum(table.numel() * table.element_size() for table in tables)

    @property
    def read_bytes(self) -> int:
        """Bytes that a decode step reads: all weights but the embedding, of which it reads a few rows."""
        whole = [self.head, self.norm]
        whole += [t for layer in self.layers for name in layer.__slots__ if (t := getattr(layer, name)) is not None]
        return sum(tensor.numel() * tensor.element_size() for tensor in whole)


def why_not_on_gpu(folder: Path, *, context_tokens: int = 0) -> str:
    """Why this model's weights cannot be served by the GPU kernels; empty when they can."""
    config = read_config(folder, context_tokens=context_tokens)
    checkpoint = Checkpoint(folder)
    config = as_stored(config, checkpoint)
    if beyond := config.beyond_llama():
        return f"the GPU kernels do not compute {beyond}"
    if config.windows:
        return f"the GPU kernels do not compute {_WINDOWS}"
    dtype = weights_dtype(config, read_tensors(config, checkpoint))
    if dtype != "bf16":
        return f"the checkpoint is {dtype} and the GPU kernels compute with bf16 weights"
    for field, width in (("hidden_size", config.hidden), ("intermediate_size", config.ffn)):
        if width % 8:
            return f"{field} is {width}, which is not a multiple of 8"
    return ""


def refuse_windows(folder: Path, *, context_tokens: int) -> None:
    """Raises ModelError where a window hides a token within the context."""
    windows = [window for window in read_config(folder, context_tokens=context_tokens).windows if window]
    if windows:
        remedy = f"Set context_tokens to at most {min(windows)}, within which it hides nothing, or device to 'cpu'."
        raise ModelError(folder / "config.json", "sliding_window", f"GPU kernels do not compute {_WINDOWS}", remedy)


def check_draft_on_gpu(folder: Path) -> None:
    if reason := why_not_on_gpu(folder):
        raise ModelError(folder, "draft", reason, "Convert the draft to bf16, or leave `draft` out.")


def load_weights(folder: Path, cache: Path, device: torch.device, *, context_tokens: int = 0) -> DeviceWeights:
    refuse_windows(folder, context_tokens=context_tokens)
    if reason := why_not_on_gpu(folder, context_tokens=context_tokens):
        raise ModelError(folder, "device", reason, 'Convert the checkpoint to bf16, or set device = "cpu".')
    config, checkpoint = read_config(folder, context_tokens=context_tokens), Checkpoint(folder)
    config = as_stored(config, checkpoint)
    tensors = read_tensors(config, checkpoint)
    with locked(cache / "weights.lock"):
        model_hash = hash_model(folder, config, tensors, cache)
    placed = {one.name: _place(one, tensors, device) for one in fused_tensors(config)}
    config = config.within(context_tokens)
    cos = np.empty((config.context, config.head_dim // 2), np.float32)
    sin = np.empty_like(cos)
    rotary_tables(config.rope, config.head_dim, cos, sin)
    return assemble(config, model_hash, placed, torch.from_numpy(cos).to(device), torch.from_numpy(sin).to(device))


def assemble(
    config: ModelConfig, model_hash: str, placed: dict[str, torch.Tensor], cos: torch.Tensor, sin: torch.Tensor
) -> DeviceWeights:
    """Weights from fused tensors by name, which come from a checkpoint or are random."""

    def layer(prefix: str) -> DeviceLayer:
        return DeviceLayer(**{name: placed.get(f"{prefix}{name}") for name in DeviceLayer.__slots__})  # type: ignore[arg-type]

    return DeviceWeights(
        config=config,
        dtype="bf16",
        model_hash=model_hash,
        embed=placed["embed"],
        head=placed["embed" if config.tied else "head"],
        norm=placed["norm"],
        cos=cos,
        sin=sin,
        layers=tuple(layer(f"{index}.") for index in range(config.layers)),
    )


def _place(one: Fused, tensors: dict[str, Stored], device: torch.device) -> torch.Tensor:
    """Puts a fused tensor on the device, source by source, so that the host never holds more than one of them."""
    shape = (one.rows, one.columns) if one.is_matrix else (one.rows,)
    out = torch.empty(shape, dtype=torch.bfloat16 if one.is_matrix else torch.float32, device=device)
    row = 0
    for source in one.sources:
        tensor = tensors[source.name]
        assert isinstance(tensor, Tensor), "why_not_on_gpu refuses quantized matrices"
        if one.is_matrix:
            values = torch.from_numpy(np.array(tensor.values).view(np.int16)).view(torch.bfloat16)
        else:
            values = torch.from_numpy(np.array(widened(tensor)))
        out[row : row + source.rows].copy_(values)
        row += source.rows
    return out
