"""Checkpoints in fp8 are rounded to four bits: their widened numbers are, as if they had been stored as such."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.stored import Tensor, WidenedMatrix
from engine.model.weights import open_weights
from engine.quantization.cached import in_four_bits
from engine.quantization.folder import quantize
from tests.unit.engine.quantized_files import Array, write

BLOCK = 48


def of_fp8(folder: Path) -> Path:
    """A tiny model whose layers are random fp8 in blocks, of which the last ones are partial."""
    tiny(folder, "llama2", hidden=64, heads=2, kv_heads=1, head_dim=32, ffn=128, layers=1)
    config, rng = json.loads((folder / "config.json").read_text()), np.random.default_rng(4)
    tensors, fp8 = dict[str, Array](), []
    for name, tensor in Checkpoint(folder).tensors.items():
        assert isinstance(tensor, Tensor)
        tensors[name] = tensor.values
        if name.endswith("_proj.weight"):
            n, k = tensor.shape
            sign, size = rng.integers(0, 2, (n, k)) << 7, rng.integers(0, 0x60, (n, k))
            tensors[name], sides = (sign | size).astype(np.uint8), (-(-n // BLOCK), -(-k // BLOCK))
            tensors[f"{name}_scale_inv"] = rng.uniform(0.001, 0.002, sides).astype(np.float32)
            fp8.append(name)
    settings = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    write(folder, tensors, settings, tuple(fp8))
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder


def widened_twin(model: Path, folder: Path) -> Path:
    tiny(folder, "llama2", hidden=64, heads=2, kv_heads=1, head_dim=32, ffn=128, layers=1)
    config, tensors = (folder / "config.json").read_text(), dict[str, Array]()
    for name, tensor in Checkpoint(model).tensors.items():
        assert isinstance(tensor, Tensor | WidenedMatrix)
        tensors[name] = tensor.values if isinstance(tensor, Tensor) else tensor.rows(0, tensor.shape[0])
    write(folder, tensors, {"quant_method": "fp8"})
    (folder / "config.json").write_text(config)
    return folder


def test_the_widened_numbers_are_rounded(tmp_path: Path) -> None:
    fp8 = of_fp8(tmp_path / "fp8")
    plain, windows = widened_twin(fp8, tmp_path / "plain"), np.arange(256, dtype=np.int32).reshape(4, 64)
    for folder in (fp8, plain):
        list(quantize(folder, folder.with_suffix(".int4"), "int4", tmp_path / "cache", windows))
    ours, theirs = (
        [file.read_bytes() for file in sorted(tmp_path.glob(f"{name}.int4/*.safetensors"))] for name in ("fp8", "plain")
    )
    assert len(ours) == 2 and ours == theirs
    settings = json.loads((tmp_path / "fp8.int4" / "config.json").read_text())["quantization_config"]
    assert settings["quant_method"] == "compressed-tensors" and "weight_block_size" not in settings


def test_a_worker_rounds_them_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fp8, cache, text = of_fp8(tmp_path / "fp8"), tmp_path / "cache", np.arange(64, dtype=np.int32).reshape(1, 64)
    monkeypatch.setattr("engine.quantization.cached.own_text", lambda weights, windows, tokens: text)
    caplog.set_level(logging.INFO)
    made = in_four_bits(fp8, cache)
    assert made != fp8 and open_weights(made, cache).products == "w4a8+w8a8-g32"
    assert "the weights are fp8, and are widened before they are rounded" in caplog.text
