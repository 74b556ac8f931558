"""A draft model for `verify`: the model itself with a few of its weights changed, often right and often not.

What speculation must keep exact is what happens to both kinds of draft; a draft that agrees always, or never, would
show half of it. How well it drafts is no matter here."""

import os
import shutil
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from engine.builtin.safetensors import write_safetensors
from engine.model.checkpoint import Checkpoint
from engine.model.digest import locked
from engine.model.weights import widened

NOISE = 0.04  # of each matrix's deviation


def ensure_draft(model: Path, cache: Path) -> Path:
    """The folder, made on first use; it belongs to this very model folder."""
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
    tensors = checkpoint.tensors

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
