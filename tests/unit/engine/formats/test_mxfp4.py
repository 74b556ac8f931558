"""Folders of gpt-oss in MXFP4: every number is the one that transformers' own dequantisation gives. A zero has no sign
here, which changes no sum."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.formats.errors import ModelError
from engine.model.matrices import rows_of
from engine.model.weights import open_weights
from tests.families.folders import rewritten, saved
from tests.unit.engine.model.test_experts import numbers
from tests.unit.engine.quantized_files import write
from tests.unit.engine.test_transformers import logits_of, oracle

Array = NDArray[Any]
Words = Callable[..., list[int]]
SETTINGS = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
EXPERTS = "model.layers.0.mlp.experts."


def dequantized(blocks: Array, scales: Array) -> Array:
    """[experts, inputs, outputs] in fp32."""
    given = (torch.from_numpy(each.copy()) for each in (blocks, scales))
    widened: Array = convert_moe_packed_tensors(*given, dtype=torch.bfloat16).float().numpy()
    return widened


def folder_of(path: Path, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array], dict[str, Any]]:
    """Tensors in MXFP4 of a folder that is written to `path`, the same ones as transformers widens them to bf16, and
    the fields of config.json."""
    saved(path, "gpt_oss", {"num_hidden_layers": 1}, dtype=torch.bfloat16)
    config = json.loads((path / "config.json").read_text())
    packed, plain = dict[str, Array](), dict[str, Array]()
    for name, values in numbers(path).items():
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = values.shape
            blocks = rng.integers(0, 256, (experts, outputs, inputs // 32, 16), np.uint8)
            scales = rng.integers(122, 126, blocks.shape[:3], np.uint8)
            packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            bits = (dequantized(blocks, scales).view(np.uint32) >> 16).astype(np.uint16)
        else:
            packed[name] = bits
        plain[name] = bits
    return packed, plain, config


def rewrite(folder: Path, tensors: dict[str, Array], config: dict[str, Any], settings: dict[str, Any] | None) -> Path:
    write(folder, tensors, SETTINGS)
    if settings is None:
        (folder / "config.json").write_text(json.dumps(config))
        return folder
    return rewritten(folder, config)


def test_every_code_and_every_scale_are_those_of_transformers(tmp_path: Path) -> None:
    codes = np.arange(256, dtype=np.uint8).reshape(16, 16)
    blocks = np.ascontiguousarray(np.broadcast_to(codes[None, :, None], (2, 16, 126, 16)))
    scales = np.arange(252, dtype=np.uint8).reshape(2, 1, 126) * np.ones((1, 16, 1), np.uint8)
    checkpoint = write(tmp_path, {"x.experts.p_blocks": blocks, "x.experts.p_scales": scales}, SETTINGS)
    expected = dequantized(blocks, scales)
    for expert in range(2):
        read = rows_of(checkpoint.tensors[f"x.experts.{expert}.p.weight"])(0, 16)
        assert read.tobytes() == np.ascontiguousarray(expected[expert].T + np.float32(0)).tobytes()


def test_a_folder_widened_to_bf16_gives_the_bits_of_the_one_that_transformers_widens(
    tmp_path: Path, engine: Any, words: Words
) -> None:
    packed, plain, config = folder_of(tmp_path / "packed", np.random.default_rng(4))
    rewrite(tmp_path / "packed", packed, config, SETTINGS)
    rewrite(tmp_path / "plain", plain, config, None)
    prompt = words(60)
    widened, theirs = (engine(tmp_path / name, product_path="pairs") for name in ("packed", "plain"))
    logits = theirs.logits(prompt)
    assert widened.logits(prompt).tobytes() == logits.tobytes()
    assert widened.weights.model_hash != theirs.weights.model_hash
    ours = engine(tmp_path / "packed")
    assert (ours.weights.products, ours.weights.dtype) == ("pairs+w4a8-g32", "bf16+mxfp4")
    exact = logits_of(oracle(tmp_path / "plain"), prompt)
    assert np.abs(ours.logits(prompt) - exact).mean() < 0.1 * exact.std()
    assert ours.logits(prompt, chunk=7).tobytes() == ours.logits(prompt).tobytes()


def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    packed, _, config = folder_of(tmp_path, np.random.default_rng(4))
    blocks, scales = f"{EXPERTS}down_proj_blocks", f"{EXPERTS}down_proj_scales"
    cases: list[tuple[dict[str, Array], tuple[str, ...], str, str]] = [
        ({}, (scales,), scales, "tensor is missing"),
        ({}, (blocks, scales), f"{EXPERTS}0.down_proj.weight", "tensor is missing"),
        ({scales: packed[scales][:, :-1]}, (), scales, r"instead of u8 \[6, 64, 3\]"),
        ({blocks: packed[blocks][..., :8]}, (), blocks, r"instead of u8 \[experts, outputs, blocks, 16\]"),
        ({blocks: packed[blocks][:, :32], scales: packed[scales][:, :32]}, (), f"{EXPERTS}0.down_proj.weight", "shape"),
    ]
    infinite = packed[scales].copy()
    infinite[3, 5, 1] = 253
    cases.append(({scales: infinite}, (), scales, "has the exponent 253, with which numbers are not finite"))
    for changed, lost, field, problem in cases:
        tensors = {name: values for name, values in (packed | changed).items() if name not in lost}
        with pytest.raises(ModelError, match=problem) as refused:
            open_weights(rewrite(tmp_path, tensors, config, SETTINGS), tmp_path / "cache")
        assert refused.value.field == field
