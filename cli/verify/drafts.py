"""A draft model for `baton verify`: the model itself with slightly changed weights, so that its drafts are often right
and often wrong.

Speculation must be exact for accepted and for refused drafts; a draft model that always agrees, or never, would show
only half of that. How well it drafts does not matter here."""

import os
import shutil
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import Tensor, widened
from engine.formats.writing import write_safetensors
from engine.model.digest import locked

NOISE = 0.04  # deviation of the change, as a share of each matrix's standard deviation


def ensure_draft(model: Path, cache: Path) -> Path:
    """Folder of the draft model, made on first use for this model folder."""
    folder = cache / f"verify-draft-{model.resolve().name}-{int(NOISE * 100)}"
    with locked(cache / "verify-draft.lock"):
        if not folder.is_dir():
            aside = folder.with_suffix(".tmp")
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(model, aside, ignore=shutil.ignore_patterns("*.safetensors*"))
            _write(Checkpoint(model), aside / "model.safetensors")
            os.rename(aside, folder)
    return folder


def _write(checkpoint: Checkpoint, file: Path) -> None:
    tensors = {name: each for name, each in checkpoint.tensors.items() if isinstance(each, Tensor)}

    def fill(name: str, shape: tuple[int, ...], first: int, count: int) -> NDArray[np.float32]:
        values = widened(tensors[name]).reshape(-1)[first : first + count].copy()
        if len(shape) == 2:
            stream = int.from_bytes(blake3(f"{name} {first}".encode()).digest(8), "little")
            values += np.float32(NOISE * values.std()) * np.random.default_rng(stream).standard_normal(
                count, np.float32
            )
        return values

    dtype = next(iter(tensors.values())).dtype
    write_safetensors(file, dtype, {name: tensor.shape for name, tensor in tensors.items()}, fill)
