"""GGUF's names of tensors in the words of Hugging Face, and where the rows of a tensor stand in the file."""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.formats.errors import ModelError
from engine.formats.gguf_families import EXPERT, WHOLE, architecture, family_of
from engine.formats.gguf_file import AGAIN, GgufFile

ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # parts of config.json
_OF_A_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<part>\w+?)(?:\.(?P<expert>\d+))?\.(?P<kind>weight|bias)")
_ROTATED = (".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias")


def named(file: GgufFile) -> Iterator[tuple[str, str]]:
    """Each tensor's name in the file and in Hugging Face's form. A tensor that holds all experts of a layer has EXPERT
    in its name."""
    parts = family_of(file).parts
    for name in file.tensors:
        if name in ROPE_TENSORS:
            continue
        if name in WHOLE:
            yield name, WHOLE[name]
            continue
        found = _OF_A_LAYER.fullmatch(name)
        part = found["part"] if found else ""
        if found and found["expert"] is not None:  # files of 2023 have a tensor for each expert
            part += "_exps"
        if found is None or part not in parts:
            raise ModelError(
                file.path, name, "is no tensor of this architecture", "Take a file that Baton can compute."
            )
        place = parts[part]
        if found["expert"] is not None:
            place = place.replace(EXPERT, found["expert"])
        yield name, f"model.layers.{found['layer']}.{place}.{found['kind']}"


def rows_of(file: GgufFile, name: str, rows: int) -> NDArray[np.int64] | None:
    """Where each row of a tensor stands in the file; None: in its own place."""
    if not family_of(file).reordered or not name.endswith(_ROTATED):
        return None
    arch = architecture(file)
    heads: int = file.take(f"{arch}.attention.head_count", int)
    count = heads if ".attn_q." in name else file.take(f"{arch}.attention.head_count_kv", int, heads)
    if count < 1 or rows % (2 * count):
        raise ModelError(file.path, name, f"has {rows} rows for {count} heads", AGAIN)
    places = np.arange(rows).reshape(count, rows // count // 2, 2).swapaxes(1, 2)
    return places.reshape(-1)
