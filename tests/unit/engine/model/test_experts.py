"""Models with experts: both ways in which checkpoints hold them, their bits in whatever company, eight bits."""

import json
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from baton_kernels import product
from engine.builtin import tiny
from engine.families import table
from engine.formats.checkpoint import Checkpoint, read_file
from engine.formats.errors import ModelError
from engine.formats.stored import widened
from engine.formats.writing import write_tensors
from engine.model import packed, weights
from engine.model.mixture import mixture_of
from engine.model.weights import Weights, open_weights
from engine.model.work import ModelWork
from engine.step.plan import Piece, Plan
from tests.families.folders import OWN, rewritten, saved
from tests.unit.engine.quantized_files import words as packed_words
from tests.unit.engine.quantized_files import write
from tests.unit.engine.test_transformers import logits_of, oracle

APART = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v2")  # transformers writes a tensor for each expert
FAMILIES = (*APART, "gpt_oss")
Words = Callable[..., list[int]]
Array = NDArray[Any]


def together(folder: Path, out: Path) -> Path:
    """The same model as transformers holds it in memory: one tensor for all experts of a layer."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.save_pretrained(out, save_original_format=False)
    return out


def written(folder: Path, tensors: Mapping[str, NDArray[np.float32]], dtype: str = "fp32") -> None:
    write_tensors(folder / "model.safetensors", {name: (dtype, values) for name, values in tensors.items()})


def numbers(folder: Path) -> dict[str, NDArray[np.float32]]:
    return {name: widened(tensor) for name, tensor in read_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize("family", APART)
def test_one_tensor_for_all_experts_and_one_for_each_are_the_same_model(
    family: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    each = saved(tmp_path / "each", family, {})
    whole = together(each, tmp_path / "whole")
    assert any(".experts.0." in name for name in Checkpoint(each).tensors), "transformers writes a tensor for each"
    assert any(name.endswith("experts.gate_up_proj") for name in Checkpoint(whole).tensors)
    one, other, prompt = engine(each), engine(whole), words(50)
    assert one.weights.model_hash == other.weights.model_hash
    assert one.logits(prompt).tobytes() == other.logits(prompt).tobytes()
    assert np.abs(other.logits(prompt) - logits_of(oracle(whole), prompt)).max() <= 1e-4


def test_a_checkpoint_whose_experts_do_not_fit_is_refused_by_tensor(tmp_path: Path) -> None:
    folder = saved(tmp_path / "each", "mixtral", {"num_hidden_layers": 1})
    tensors = numbers(folder)
    lost = "model.layers.0.block_sparse_moe.experts.3.w3.weight"
    written(folder, {name: values for name, values in tensors.items() if name != lost})
    with pytest.raises(ModelError, match="tensor is missing") as refused:
        open_weights(folder, tmp_path / "cache")
    assert refused.value.field == lost
    whole = together(saved(tmp_path / "again", "mixtral", {"num_hidden_layers": 1}), tmp_path / "whole")
    rewritten(whole, {"num_local_experts": 5})
    with pytest.raises(ModelError, match=r"\[6, 192, 64\] instead of \[5, 192, 64\]") as refused:
        open_weights(whole, tmp_path / "cache")
    assert refused.value.field == "model.layers.0.mlp.experts.gate_up_proj"
    rewritten(whole, {"num_local_experts": 6})
    written(whole, numbers(whole) | {lost: tensors[lost]})
    with pytest.raises(ModelError, match=r"stands also in model\.layers\.0\.mlp\.experts\.gate_up_proj") as refused:
        open_weights(whole, tmp_path / "cache")
    assert refused.value.field == lost


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("path", "kv"), [("fp32", "own"), ("pairs", "own"), ("amx", "own"), ("int8", "own"), ("pairs", "int8")]
)
def test_a_row_has_the_same_bits_alone_in_chunks_and_among_others(
    family: str, path: str, kv: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    folder = saved(tmp_path / "model", family, {"num_hidden_layers": 2}, dtype=torch.bfloat16)
    ours, texts = engine(folder, product_path=path, kv=kv), [words(40, seed) for seed in range(3)]
    tables = [tuple(range(2 * number, 2 * number + 2)) for number in range(3)]

    def logits(*pieces: Piece) -> list[bytes]:
        return [each.tobytes() for each in ours.runner.compute_logits(Plan(0, pieces))]

    def piece(number: int, first: int, last: int) -> Piece:
        found: Piece = ours.piece(texts[number][first:last], first, key=number, pages=tables[number])
        return found

    whole = [logits(piece(number, 0, 40))[0] for number in range(3)]
    assert logits(*(piece(number, 0, 40) for number in range(3))) == whole
    row = len(whole[0]) // 40
    for number in range(3):
        chunks = [logits(piece(number, first, first + 8))[0] for first in range(0, 32, 8)]
        chunks += [logits(piece(number, first, first + 1))[0] for first in range(32, 40)]
        assert b"".join(chunks) == whole[number]
    last = logits(*(piece(number, 39, 40) for number in range(3)))
    assert last == [each[39 * row :] for each in whole]


def test_eight_bits_round_experts_and_leave_the_router_as_it_is(tmp_path: Path, engine: Any, words: Words) -> None:
    folder, prompt = tiny(tmp_path / "model", "qwen3_moe", dtype="bf16"), words(60)
    ours = engine(folder, product_path="int8")
    mixture = mixture_of(ours.weights.layers[0], ours.weights.config)
    assert mixture is not None and ours.weights.products == "w8a8-g16+w8a8-g32+w8a8-g64"
    router = np.eye(64, dtype=np.float32)
    scores = np.empty((64, 8), np.float32)
    product(router, mixture.router, scores)
    assert (scores.T == numbers(folder)["model.layers.0.mlp.gate.weight"]).all()
    exact = logits_of(oracle(folder), prompt)
    assert np.abs(ours.logits(prompt) - exact).mean() < 0.1 * exact.std()


def in_int8(values: Array) -> dict[str, Array]:
    scales = np.abs(values).max(1, keepdims=True) / np.float32(127)
    return {"weight": np.rint(values / scales).astype(np.int8), "weight_scale": scales}


def in_int4(values: Array) -> dict[str, Array]:
    grouped = values.reshape(len(values), -1, 16)
    scales = np.abs(grouped).max(2) / np.float32(7)
    nibbles = (np.rint(grouped / scales[..., None]) + 8).astype(np.uint8).reshape(values.shape)
    shape = np.array(values.shape, np.int64)
    return {"weight_packed": packed_words(nibbles, 4, 1), "weight_scale": scales, "weight_shape": shape}


def in_fp8(values: Array) -> dict[str, Array]:
    """Blocks of 16 outputs and 32 inputs."""
    rows, columns = (-(-side // block) for side, block in zip(values.shape, (16, 32), strict=True))
    scales = np.full((rows, columns), np.abs(values).max() / 448, np.float32)
    codes = torch.from_numpy(values / scales[0, 0]).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return {"weight": codes, "weight_scale_inv": scales}


GROUP = {"weights": {"type": "int", "num_bits": 8, "strategy": "channel"}, "targets": ["Linear"]}
COMPRESSED: dict[str, Any] = {"quant_method": "compressed-tensors", "config_groups": {"group_0": GROUP}}
FORMATS: dict[str, tuple[Callable[[Array], dict[str, Array]], dict[str, Any], str]] = {
    "int8": (in_int8, COMPRESSED | {"format": "int-quantized"}, "pairs+w8a8"),
    "int4": (in_int4, COMPRESSED | {"format": "pack-quantized"}, "pairs+w4a8-g16"),
    "fp8": (in_fp8, {"quant_method": "fp8", "weight_block_size": [16, 32]}, "pairs"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_experts_of_a_quantized_checkpoint_are_read_in_their_own_bits(
    kind: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    """The router is left as it is, as tools leave it."""
    rounded, settings, products = FORMATS[kind]
    folder, tensors = tiny(tmp_path / "model", "qwen3_moe"), dict[str, Array]()
    config = json.loads((folder / "config.json").read_text())
    for name, values in numbers(folder).items():
        module = name.removesuffix(".weight")
        parts = rounded(values) if ".experts." in name else {"weight": values}
        tensors |= {f"{module}.{part}": each for part, each in parts.items()}
    fp8 = tuple(name for name in tensors if kind == "fp8" and ".experts." in name and name.endswith(".weight"))
    write(folder, tensors, settings, fp8)
    rewritten(folder, config)
    ours, prompt = engine(folder), words(60)
    assert ours.weights.products == products
    exact = logits_of(oracle(tiny(tmp_path / "exact", "qwen3_moe")), prompt)
    assert np.abs(ours.logits(prompt) - exact).mean() < 0.2 * exact.std()
    if kind == "fp8":  # its matrices are widened to the form of others
        return
    lost = "model.layers.0.mlp.experts.2.down_proj"
    whole = {name: values for name, values in tensors.items() if not name.startswith(lost)}
    write(folder, whole | {f"{lost}.weight": numbers(tmp_path / "exact")[f"{lost}.weight"]}, settings)
    rewritten(folder, config)
    with pytest.raises(ModelError, match="experts whose matrices have different forms"):
        engine(folder)


def test_gates_and_ups_beyond_the_limit_of_the_family_are_clamped(tmp_path: Path, engine: Any, words: Words) -> None:
    folder, prompt = saved(tmp_path / "model", "gpt_oss", {"num_hidden_layers": 2}), words(60)
    for name, values in (tensors := numbers(folder)).items():
        tensors[name] = values * np.float32(60 if name.endswith("gate_up_proj_bias") else 1)
    written(folder, tensors)
    exact = logits_of(oracle(folder), prompt)
    assert np.abs(engine(folder).logits(prompt) - exact).max() <= 1e-4


def test_a_checkpoint_without_a_tensor_of_all_experts_is_refused_by_its_name(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "gpt_oss", {"num_hidden_layers": 1})
    tensors = numbers(folder)
    for lost in ("mlp.experts.down_proj", "mlp.experts.gate_up_proj_bias", "self_attn.sinks", "mlp.router.bias"):
        written(folder, {name: values for name, values in tensors.items() if not name.endswith(lost)})
        with pytest.raises(ModelError, match="tensor is missing") as refused:
            open_weights(folder, tmp_path / "cache")
        assert refused.value.field == f"model.layers.0.{lost}"


def test_packing_takes_the_memory_of_one_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape: dict[str, Any] = {"hidden": 256, "layers": 1}
    experts = (("num_experts", 32), ("num_experts_per_tok", 2), ("moe_intermediate_size", 512))
    folder = tiny(tmp_path / "model", "qwen3_moe", dtype="bf16", experts=experts, **shape)
    peaks: list[int] = []

    def opened(*given: Any) -> Any:  # it is called before the weights are packed, and after
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.reset_peak()
        return packed.open_packed(*given)

    monkeypatch.setattr(weights, "open_packed", opened)
    tracemalloc.start()
    try:
        layer = open_weights(folder, tmp_path / "cache").layers[0]
    finally:
        tracemalloc.stop()
    assert layer.experts_gate_up is not None and layer.experts_gate_up.shape[0] == 32
    assert len(peaks) == 2 and peaks[1] < layer.experts_gate_up.nbytes / 8


def test_the_least_work_of_a_step_counts_the_experts_of_one_row(tmp_path: Path) -> None:
    def opened(chosen: int) -> Weights:
        experts = (("num_experts", 8), ("num_experts_per_tok", chosen), ("moe_intermediate_size", 48))
        return open_weights(tiny(tmp_path / f"{chosen}", "qwen3_moe", experts=experts), tmp_path / "cache")

    one, three = (ModelWork.of(opened(chosen)) for chosen in (1, 3))
    assert three.weight_bytes - one.weight_bytes == three.expert_bytes - one.expert_bytes
    assert one.expert_bytes > 0 and three.expert_bytes == 3 * one.expert_bytes
    assert three.rest_operations - one.rest_operations == 2 * 64 * 3 * 2 * 48


def test_the_families_with_experts_are_those_of_the_table() -> None:
    assert {name for name, family in table.FAMILIES.items() if family.experts} == set(FAMILIES) <= set(OWN)
