"""The hash of a quantized model names how its bytes are read: equal bytes may stand for other numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.formats.stored import StoredMatrix
from engine.model.config import read_config
from engine.model.model_hash import hash_model
from tests.unit.engine.quantized_files import Array, write

N, K = 16, 128
MODULE = "model.layers.0.mlp.up_proj"
BLOCKS = {"weight": np.full((24, K), 0x38, np.uint8), "weight_scale_inv": np.ones((2, 2), np.float32)}
WORDS = {
    "qweight": np.ones((K // 8, N), np.int32),
    "qzeros": np.ones((4, N // 8), np.int32),
    "scales": np.ones((4, N), np.float16),
}
BF16 = WORDS | {"scales": WORDS["scales"].view(np.uint16)}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [16, 64]}


def hashed(place: Path, parts: dict[str, Array], settings: dict[str, Any]) -> str:
    named = {f"{MODULE}.{part}": values for part, values in parts.items()}
    fp8 = (f"{MODULE}.weight",) if settings["quant_method"] == "fp8" else ()
    tensors = write(place / "made", named, settings, fp8).tensors
    return hash_model(place / "made", read_config(tiny(place / "tiny", "llama2")), tensors, place / "cache")


@pytest.mark.parametrize(
    ("parts", "settings", "other_parts", "other_settings"),
    [
        (WORDS, GPTQ, WORDS, GPTQ | {"checkpoint_format": "gptq_v2"}),
        (WORDS, GPTQ, WORDS, GPTQ | {"group_size": 16}),
        (WORDS, GPTQ, BF16, GPTQ),
        (BLOCKS, FP8, BLOCKS, FP8 | {"weight_block_size": [12, 64]}),
        (BLOCKS, FP8, BLOCKS, FP8 | {"weight_block_size": [16, 100]}),
    ],
    ids=["zeros minus one", "groups", "type of scales", "rows of a block", "columns of a block"],
)
def test_equal_bytes_that_are_read_otherwise_have_another_hash(
    parts: Any, settings: Any, other_parts: Any, other_settings: Any, tmp_path: Path
) -> None:
    hashes = [
        hashed(tmp_path / name, *model)
        for name, model in (("a", (parts, settings)), ("b", (parts, settings)), ("c", (other_parts, other_settings)))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_what_changes_no_number_changes_no_hash(tmp_path: Path) -> None:
    spelled = GPTQ | {"checkpoint_format": "gptq", "quantizer": "of another name"}
    assert hashed(tmp_path / "a", WORDS, GPTQ) == hashed(tmp_path / "b", WORDS, spelled)
    made = write(tmp_path / "m", {f"{MODULE}.{part}": values for part, values in WORDS.items()}, GPTQ)
    assert isinstance(made.tensors[f"{MODULE}.weight"], StoredMatrix)
