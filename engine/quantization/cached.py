"""A model in four bits, made once for this host and kept in the cache.

Workers start together: the first one makes the folder under a lock, and the others find it."""

import logging
from pathlib import Path

from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import StoredMatrix
from engine.integers.forms import RECIPE
from engine.model.config import read_config
from engine.model.digest import locked
from engine.model.layout import as_stored, read_tensors
from engine.model.model_hash import hash_model
from engine.model.weights import Weights, open_weights
from engine.quantization.folder import quantize
from engine.quantization.own_text import WINDOW, WINDOWS, own_text
from engine.quantization.plain_layer import refuse_unfollowed
from engine.quantization.refusals import is_rounded, widened_types

log = logging.getLogger("baton.model")


def open_widened(folder: Path, cache: Path) -> Weights:
    """The model with products of numbers, also where the checkpoint is quantized."""
    quantized = any(isinstance(tensor, StoredMatrix) for tensor in Checkpoint(folder).tensors.values())
    return open_weights(folder, cache, product_path="pairs" if quantized else "auto")


def in_four_bits(folder: Path, cache: Path) -> Path:
    """The folder of this model with its layers in four bits; the model itself if they are integers already."""
    config, checkpoint = read_config(folder), Checkpoint(folder)
    config = as_stored(config, checkpoint)
    refuse_unfollowed(folder, config)
    tensors = read_tensors(config, checkpoint)
    if is_rounded(config, tensors):
        return folder
    with locked(cache / "quantized.lock"):
        out = cache / "quantized" / f"{hash_model(folder, config, tensors, cache)[:32]}-int4.{RECIPE}" / folder.name
        if not out.exists():
            log.info("rounding %s to four bits, once: it writes a text, and each layer follows it", folder.name)
            if types := widened_types(config, tensors):
                log.info("the weights are %s, and are widened before they are rounded", types)
            out.parent.mkdir(parents=True, exist_ok=True)
            windows = own_text(open_widened(folder, cache), windows=WINDOWS, tokens=WINDOW)
            for change in quantize(folder, out, "int4", cache, windows):
                log.info("layer %d of %d is rounded", change.layer + 1, config.layers)
    return out
