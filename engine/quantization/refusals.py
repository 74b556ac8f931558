"""The refusals of a run of quantization: a model that is rounded already, and a disk that cannot be written."""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from engine.formats.errors import ModelError
from engine.formats.stored import Stored, StoredMatrix, WidenedMatrix
from engine.model.config import ModelConfig
from engine.quantization.partial import refuse_existing
from engine.quantization.tensors import layer_tensors

_REMEDIES = {
    errno.ENOSPC: "Free disk space, and start the same command again: it goes on behind the last layer it wrote.",
    errno.EDQUOT: "Free disk space, and start the same command again: it goes on behind the last layer it wrote.",
    errno.EROFS: "Name a folder on a disk that can be written.",
    errno.EACCES: "Name a folder where you may write.",
    errno.EPERM: "Name a folder where you may write.",
    errno.ENOTDIR: "Name a folder whose parents are folders.",
}


def is_rounded(config: ModelConfig, tensors: Mapping[str, Stored]) -> bool:
    """Whether the checkpoint has every matrix of its layers in integers. One in fp8 or nf4 has numbers to round."""
    return all(isinstance(tensors[name], StoredMatrix) for name in _rounded(config))


def widened_types(config: ModelConfig, tensors: Mapping[str, Stored]) -> str:
    """The types of matrices that are widened before they are rounded; empty: there are none."""
    found = {each.dtype for name in _rounded(config) if isinstance(each := tensors[name], WidenedMatrix)}
    return ", ".join(sorted(found))


def refuse_rounded(source: Path, config: ModelConfig, tensors: Mapping[str, Stored]) -> None:
    """Raises ModelError for a model in which nothing is left to round: rounding its integers again would only lose
    more."""
    if is_rounded(config, tensors):
        problem = "has its weights quantized already"
        raise ModelError(source, "MODEL", problem, "Serve it as it is, or name the model that it was made from.")


def refuse_unwritable(out: Path) -> None:
    """Raises ModelError where the folder exists or its place cannot be written: said before anything is computed."""
    refuse_existing(out)
    place = next(parent for parent in (*out.absolute().parents,) if parent.exists())
    if not place.is_dir():
        raise ModelError(out, "folder", f"cannot be written ({place} is no folder)", _REMEDIES[errno.ENOTDIR])
    if not os.access(place, os.W_OK | os.X_OK):
        problem = f"cannot be written (no permission, or a read-only disk, at {place})"
        raise ModelError(out, "folder", problem, _REMEDIES[errno.EACCES])


def _rounded(config: ModelConfig) -> Iterator[str]:
    """The names of all matrices that are rounded."""
    for layer in range(config.layers):
        for each in layer_tensors(config, layer):
            if each.rounded:
                yield f"model.layers.{layer}.{each.name}"


@contextmanager
def readable_disk(out: Path) -> Iterator[None]:
    """Turns what a disk refuses into an error that says what to do."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "Check the disk, and start the same command again.")
        raise ModelError(out, "folder", f"cannot be written ({error.strerror or error})", remedy) from None
