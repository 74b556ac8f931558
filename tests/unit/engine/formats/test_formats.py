"""Folders with a quantization_config: each method's tensors stand for the numbers that its definition gives them.

The folders are written here, element by element, as the methods define them. `tests/formats` has the same judged by the
methods' own tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.factors import progressive
from engine.formats.stored import StoredMatrix, Tensor, WidenedMatrix
from engine.integers.numbers import dequantized
from engine.model.weights import open_weights
from tests.unit.engine.quantized_files import Array, words, write

N, K = 16, 128
MODULE = "model.layers.0.mlp.up_proj"


def numbers_of(checkpoint: Checkpoint) -> Array:
    stored = checkpoint.tensors[f"{MODULE}.weight"]
    if isinstance(stored, StoredMatrix):
        return dequantized(stored.read())
    assert isinstance(stored, WidenedMatrix)
    return stored.rows(0, N)


def bf16(values: Array) -> Array:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def of_bf16(values: Array) -> Array:
    return (values.astype(np.uint32) << 16).view(np.float32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


def test_awq(tmp_path: Path, rng: np.random.Generator) -> None:
    q, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // 32, N))
    scales = rng.normal(0, 0.1, (K // 32, N)).astype(np.float16)
    interleaved = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {"qweight": words(q, 4, 1, interleaved), "qzeros": words(zeros, 4, 1, interleaved), "scales": scales}
    made = write(tmp_path / "m", {f"{MODULE}.{name}": part for name, part in parts.items()}, AWQ)
    each = np.repeat(zeros, 32, 0), np.repeat(scales.astype(np.float32), 32, 0)
    assert (numbers_of(made) == ((q - each[0]).astype(np.float32) * each[1]).T).all()
    assert set(made.tensors) == {f"{MODULE}.weight"}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("ordered", [False, True])
def test_gptq(bits: int, version: str, ordered: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    q, zeros = rng.integers(0, 2**bits, (K, N)), rng.integers(1, 2**bits, (K // 32, N))
    scales = rng.normal(0, 0.1, (K // 32, N)).astype(np.float16)
    owner = np.arange(K) // 32
    if ordered:
        owner = rng.permutation(owner)
    parts = {
        "qweight": words(q, bits, 0),
        "qzeros": words(zeros - (version == "gptq"), bits, 1),
        "scales": scales,
        "g_idx": owner.astype(np.int32),
    }
    settings = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": 32,
        "desc_act": ordered,
        "checkpoint_format": version,
    }
    made = write(tmp_path / "m", {f"{MODULE}.{name}": part for name, part in parts.items()}, settings)
    wanted = ((q - zeros[owner]).astype(np.float32) * scales.astype(np.float32)[owner]).T
    assert (numbers_of(made) == wanted).all()
    stored = made.tensors[f"{MODULE}.weight"]
    assert isinstance(stored, StoredMatrix) and stored.form.ordered is ordered


def compressed(kind: str) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {}, "ignore": ["lm_head"]}


def test_compressed_int8_per_output(tmp_path: Path, rng: np.random.Generator) -> None:
    weight, scale = rng.integers(-128, 128, (N, K)).astype(np.int8), bf16(rng.uniform(0.01, 0.1, (N, 1)))
    tensors = {f"{MODULE}.weight": weight, f"{MODULE}.weight_scale": scale}
    made = write(tmp_path / "m", tensors, compressed("int-quantized"))
    assert (numbers_of(made) == weight.astype(np.float32) * of_bf16(scale)).all()
    assert made.tensors[f"{MODULE}.weight"].form.scheme == "int8"  # type: ignore[union-attr]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits", [4, 8])
def test_compressed_words_in_groups(bits: int, symmetric: bool, tmp_path: Path, rng: np.random.Generator) -> None:
    half = 2 ** (bits - 1)
    q, scale = rng.integers(-half, half, (N, K)), bf16(rng.uniform(0.01, 0.1, (N, K // 32)))
    zeros = np.zeros((N, K // 32), np.int64) if symmetric else rng.integers(-half, half, (N, K // 32))
    tensors = {
        f"{MODULE}.weight_packed": words(q + half, bits, 1),
        f"{MODULE}.weight_scale": scale,
        f"{MODULE}.weight_shape": np.array([N, K], np.int64),
    }
    if not symmetric:
        tensors[f"{MODULE}.weight_zero_point"] = words(zeros + half, bits, 0)
    made = write(tmp_path / "m", tensors, compressed("pack-quantized"))
    each = np.repeat(zeros, 32, 1), np.repeat(of_bf16(scale), 32, 1)
    assert (numbers_of(made) == (q - each[0]).astype(np.float32) * each[1]).all()


E4M3 = [0.0, 2.0**-9, 7 * 2.0**-9, 2.0**-6, 1.0, 1.125, 448.0, -0.5]
CODES = [0x00, 0x01, 0x07, 0x08, 0x38, 0x39, 0x7E, 0xB0]


@pytest.mark.parametrize("scales", ["tensor", "output", "block"])
def test_fp8(scales: str, tmp_path: Path, rng: np.random.Generator) -> None:
    chosen = rng.integers(0, len(CODES), (N, K))
    weight, numbers = np.array(CODES, np.uint8)[chosen], np.array(E4M3, np.float32)[chosen]
    shape = {"tensor": (1,), "output": (N, 1), "block": (2, 2)}[scales]
    scale = rng.uniform(0.1, 1, shape).astype(np.float32)
    settings: dict[str, Any] = {"quant_method": "fp8"}
    if scales == "block":
        settings["weight_block_size"] = [8, 64]
    name = "weight_scale_inv" if scales == "block" else "weight_scale"
    tensors = {f"{MODULE}.weight": weight, f"{MODULE}.{name}": scale}
    made = write(tmp_path / "m", tensors, settings, fp8=(f"{MODULE}.weight",))
    each = np.repeat(np.repeat(scale, 8, 0), 64, 1) if scales == "block" else scale
    assert (numbers_of(made) == numbers * each).all()


def test_bitsandbytes_int8_and_nf4(tmp_path: Path, rng: np.random.Generator) -> None:
    weight, largest = rng.integers(-127, 128, (N, K)).astype(np.int8), rng.uniform(0.5, 2, N).astype(np.float32)
    settings = {"quant_method": "bitsandbytes"}
    made = write(tmp_path / "int8", {f"{MODULE}.weight": weight, f"{MODULE}.SCB": largest}, settings)
    assert np.allclose(numbers_of(made), weight * (largest[:, None] / 127), rtol=1e-6)
    table, q = np.sort(rng.normal(0, 1, 16)).astype(np.float32), rng.integers(0, 16, N * K)
    absmax = rng.uniform(0.5, 2, N * K // 64).astype(np.float32)
    state = json.dumps({"shape": [N, K], "blocksize": 64, "quant_type": "nf4", "dtype": "bfloat16"}).encode()
    tensors = {
        f"{MODULE}.weight": (q[::2] << 4 | q[1::2]).astype(np.uint8).reshape(-1, 1),
        f"{MODULE}.weight.absmax": absmax,
        f"{MODULE}.weight.quant_map": table,
        f"{MODULE}.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    made = write(tmp_path / "nf4", tensors, settings)
    assert (numbers_of(made) == (table[q] * np.repeat(absmax, 64)).reshape(N, K)).all()


def turned(*places: str) -> dict[str, Any]:
    """Settings of a folder whose activations or weights are turned at these places."""
    scheme = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": place} for place in places]}
    return compressed("int-quantized") | {"transform_config": {"config_groups": {"v": scheme}}}


def blocks(*sides: list[int]) -> dict[str, Any]:
    groups = {f"group_{at}": {"weights": {"block_structure": each}} for at, each in enumerate(sides)}
    return compressed("float-quantized") | {"config_groups": groups}


def test_turns_of_weights_are_in_the_weights_already(tmp_path: Path) -> None:
    write(tmp_path / "m", {"a": np.zeros(2, np.float32)}, turned("weight_input", "weight_output"))


def test_compressed_fp8_in_blocks(tmp_path: Path) -> None:
    scale = np.arange(1, N + 1, dtype=np.float32).reshape(4, 4)  # as many scales as rows
    tensors = {f"{MODULE}.weight": np.full((N, K), 0x38, np.uint8), f"{MODULE}.weight_scale": scale}
    made = write(tmp_path / "m", tensors, blocks([4, 32]), fp8=(f"{MODULE}.weight",))
    assert (numbers_of(made) == np.repeat(np.repeat(scale, 4, 0), 32, 1)).all()
    tensors[f"{MODULE}.weight"] = tensors[f"{MODULE}.weight"].view(np.int8)
    with pytest.raises(ModelError, match=r"weight_scale.*shape \[4, 4\] for a weight of 16 rows"):
        write(tmp_path / "int8", tensors, compressed("int-quantized"))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"quant_method": "quip"}, "quant_method 'quip'.*compressed-tensors, awq, gptq, fp8, bitsandbytes"),
        ({"quant_method": "awq", "bits": 3}, "AWQ with 3 bits"),
        ({"quant_method": "gptq", "bits": 2}, "GPTQ with 2 bits"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (compressed("nvfp4-pack-quantized"), "format 'nvfp4-pack-quantized'"),
        (compressed("marlin-24"), "format 'marlin-24'"),
        (compressed("int-quantized") | {"kv_cache_scheme": {"num_bits": 4, "type": "int"}}, "kv_cache_scheme"),
        (turned("input", "weight_input"), "transform_config turns activations.*scheme v, location 'input'"),
        (turned("weight_output", "output"), "transform_config turns activations.*location 'output'"),
        (turned("q_attn"), "transform_config turns activations.*location 'q_attn'"),
        (compressed("int-quantized") | {"transform_config": "hadamard"}, "transform_config turns activations"),
        (compressed("int-quantized") | {"transform_config": {"config_groups": {"v": {}}}}, "scheme v, location None"),
        (blocks([128, 128], [64, 64]), r"block_structure is \[128, 128\] for some"),
        (blocks([128]), r"block_structure \[128\] is no pair"),
    ],
)
def test_what_is_not_read_is_refused_by_name(settings: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"config.json.*quantization_config.*{word}"):
        write(tmp_path / "m", {"a": np.zeros(2, np.float32)}, settings)


def test_parts_that_do_not_fit_are_named(tmp_path: Path, rng: np.random.Generator) -> None:
    parts = {"qweight": np.zeros((K, N // 8), np.int32), "scales": np.zeros((4, N), np.float16)}
    with pytest.raises(ModelError, match=rf"{MODULE}\.qzeros.*missing"):
        write(tmp_path / "a", {f"{MODULE}.{name}": part for name, part in parts.items()}, AWQ)
    parts["qzeros"] = np.zeros((3, N // 8), np.int32)
    with pytest.raises(ModelError, match=rf"{MODULE}\.qzeros.*\[3, 2\] instead of .*\[4, 2\]"):
        write(tmp_path / "b", {f"{MODULE}.{name}": part for name, part in parts.items()}, AWQ)
    owner = {"g_idx": np.zeros(K, np.int32), "qweight": np.zeros((K // 8, N), np.int32)}
    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    parts = {"scales": np.zeros((4, N), np.float16), "qzeros": np.zeros((4, N // 8), np.int32)} | owner
    with pytest.raises(ModelError, match=rf"{MODULE}\.g_idx.*unequal"):
        write(tmp_path / "c", {f"{MODULE}.{name}": part for name, part in parts.items()}, settings)


def test_scales_that_are_small_multiples_of_one_become_factors(rng: np.random.Generator) -> None:
    base, factors = rng.uniform(0.01, 0.02, 9).astype(np.float16).astype(np.float32), rng.integers(1, 9, (9, 4))
    base = (base.view(np.uint32) & 0xFFF80000).view(np.float32)  # products with the factors are exact
    scales = base[:, None] * factors.astype(np.float32)
    found = progressive(scales, None, 32)
    assert found is not None
    rows, small, zeros = found
    assert (rows[:, None] * small == scales).all() and (zeros == 8).all() and small.max() <= 17
    assert progressive(scales * rng.uniform(1, 1.01, scales.shape).astype(np.float32), None, 32) is None
    assert progressive(scales, None, 16) is None


def quantized_folder(folder: Path, edit: Callable[[dict[str, Array]], None]) -> Path:
    """A whole tiny model whose layers are int8 per output."""
    tiny(folder, "llama2", dtype="bf16")
    tensors = dict[str, Array]()
    for name, tensor in Checkpoint(folder).tensors.items():
        assert isinstance(tensor, Tensor)
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor.values
            continue
        numbers = of_bf16(tensor.values)
        scale = bf16(np.abs(numbers).max(1, keepdims=True) / 127)
        tensors[name] = np.clip(np.rint(numbers / of_bf16(scale)), -127, 127).astype(np.int8)
        tensors[f"{name}_scale"] = scale
    edit(tensors)
    config = json.loads((folder / "config.json").read_text())
    settings = compressed("int-quantized")
    write(folder, tensors, settings)
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    return folder


def test_a_quantized_folder_answers_close_to_its_widened_self(tmp_path: Path, engine: Any, words: Any) -> None:
    folder = quantized_folder(tmp_path / "model", lambda tensors: None)
    weights = open_weights(folder, tmp_path / "weights")
    assert weights.products == "w8a8" and weights.dtype == "bf16+compressed-tensors-int8"
    prompt, integers = [int(token) for token in words(60)], engine(folder)
    logits, wide = integers.logits(prompt), engine(folder, product_path="pairs").logits(prompt)
    assert (integers.logits(prompt, chunk=7) == logits).all()
    assert np.corrcoef(logits.reshape(-1), wide.reshape(-1))[0, 1] > 0.999
    assert (engine(folder, product_path="int8").logits(prompt) != logits).any(), "rounded again, to groups"


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    def spoil(tensors: dict[str, Array]) -> None:
        tensors["model.layers.1.self_attn.q_proj.weight_scale"][3] = 0x7F80

    folder = quantized_folder(tmp_path / "model", spoil)
    with pytest.raises(ModelError, match=r"layers\.1\.self_attn\.q_proj.*not finite"):
        open_weights(folder, tmp_path / "weights")
