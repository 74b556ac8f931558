"""The folder of a quantized model: its form, its quality, and what happens when writing it is interrupted."""

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton_kernels import MatrixForm
from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import StoredMatrix, Tensor
from engine.integers.numbers import dequantized
from engine.integers.rounding import rounded
from engine.loading.loaded import load_model
from engine.model.weights import open_weights
from engine.quantization.cached import in_four_bits
from engine.quantization.compensated import Compensation, compensated
from engine.quantization.folder import quantize
from engine.quantization.own_text import own_text
from engine.quantization.text import sample_text, token_ids, windows_of
from engine.selftest.identity import identify

FAMILIES = [("llama2", {}), ("llama3", {"tied": True}), ("qwen2", {"tied": True}), ("qwen3", {"dtype": "bf16"})]
WIDE = {"hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256}


def windows(count: int = 4, length: int = 64) -> Any:
    return np.random.default_rng(0).integers(0, 262, (count, length)).astype(np.int32)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_beside_integers_attention_may_have_the_path_of_tiles(
    tmp_path: Path, engine: Any, words: Callable[..., list[int]]
) -> None:
    folder, tokens = tiny(tmp_path / "model", "qwen2", dtype="bf16", **WIDE), words(90)
    list(quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows()))
    usual, tiles = (engine(tmp_path / "out", product_path=path) for path in ("auto", "auto-amx"))
    assert (usual.weights.computed_as, tiles.weights.computed_as) == ("w8a8-g64", "w8a8-g64/amx")
    named, other = (identify(each.weights, 32) for each in (usual, tiles))
    assert " path=w8a8-g64/amx " in other.numerics and named.fingerprint != other.fingerprint
    plain, ours, near = engine(folder).logits(tokens), usual.logits(tokens), tiles.logits(tokens)
    assert not np.array_equal(ours, near) and np.square(near - ours).mean() < np.square(ours - plain).mean()


@pytest.mark.parametrize("target", ["int8", "int4"])
@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_a_quantized_folder_answers_nearly_as_the_model(
    target: str, family: str, options: dict[str, Any], tmp_path: Path, engine: Any, words: Callable[..., list[int]]
) -> None:
    folder, out = tiny(tmp_path / "model", family, **WIDE | options), tmp_path / "out"
    changes = list(quantize(folder, out, target, tmp_path / "cache", windows()))
    assert [each.layer for each in changes] == list(range(len(changes))) and len(changes) == 2
    assert all((0 < each.share < 0.02) if target == "int8" else (0.02 < each.share < 0.3) for each in changes)
    made = Checkpoint(out)
    matrices = [each for name, each in made.tensors.items() if "_proj.weight" in name]
    forms = {each.form.scheme for each in matrices if isinstance(each, StoredMatrix)}
    assert forms == ({"int8-groups"} if target == "int8" else {"int8-groups", "int4"}) and len(matrices) == 14
    assert open_weights(out, tmp_path / "cache").products == ("w8a8-g64" if target == "int8" else "w4a8+w8a8-g64")
    tokens = words(90)
    plain, ours = (engine(each).logits(tokens) for each in (folder, out))
    off = np.sqrt(np.square(plain - ours).mean() / np.square(plain).mean())
    assert off < (0.05 if target == "int8" else 0.35)
    assert not list(tmp_path.glob("*.partial"))


def test_an_interrupted_run_goes_on_and_writes_the_same_bytes(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", **WIDE, layers=3)
    first = list(quantize(folder, tmp_path / "whole", "int4", tmp_path / "cache", windows()))
    run = quantize(folder, tmp_path / "cut", "int4", tmp_path / "cache", windows())
    next(run), next(run)
    run.close()
    partial = tmp_path / "cut.partial"
    before = {file.name: file.stat().st_mtime_ns for file in partial.glob("model-0000[123]*")}
    assert len(before) == 3 and not (tmp_path / "cut").exists()
    assert list(quantize(folder, tmp_path / "cut", "int4", tmp_path / "cache", windows())) == first
    after = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "cut").glob("model-0000[123]*")}
    assert after == before, "what was written is not written again"
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_what_another_run_left_behind_is_not_taken(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", **WIDE)
    run = quantize(folder, tmp_path / "out", "int4", tmp_path / "cache", windows())
    next(run)
    run.close()
    list(quantize(folder, tmp_path / "out", "int4", tmp_path / "cache", windows(5)))
    list(quantize(folder, tmp_path / "anew", "int4", tmp_path / "cache", windows(5)))
    assert contents(tmp_path / "out") == contents(tmp_path / "anew")


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", **WIDE)
    with pytest.raises(ModelError, match="exists already"):
        list(quantize(folder, folder, "int8", tmp_path / "cache", windows()))
    assert Checkpoint(folder).tensors


def test_the_configuration_says_how_each_matrix_is_stored(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "qwen2", **WIDE, tied=True)
    for target, kinds in (("int8", {8: 7}), ("int4", {4: 3, 8: 4})):
        list(quantize(folder, tmp_path / target, target, tmp_path / "cache", windows()))
        config = json.loads((tmp_path / target / "config.json").read_text())
        groups = config["quantization_config"]["config_groups"].values()
        assert {group["weights"]["num_bits"]: len(group["targets"]) for group in groups} == kinds
        assert config["tie_word_embeddings"] is (target == "int8"), "a turned head is no embedding"
        assert (tmp_path / target / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_rounding_with_compensation_changes_outputs_less_than_the_nearest_values() -> None:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((96, 128)).astype(np.float32)
    inputs = (rng.standard_normal((500, 128)) @ rng.standard_normal((128, 128)) * 0.1).astype(np.float32)
    form = MatrixForm("int4", group=32)
    near = dequantized(rounded(form, 96, 128, lambda first, last: weights[first:last]))
    ours = compensated(form, weights, Compensation.of([inputs], 128))
    exact = inputs @ weights.T
    off = [np.square(inputs @ each.T - exact).mean() for each in (dequantized(ours), near)]
    assert off[0] < 0.7 * off[1]
    assert ours.offsets is not None and ours.factors is not None
    stepped = (ours.values - np.repeat(ours.offsets, 32, 1).astype(int)) * np.repeat(ours.factors, 32, 1).astype(int)
    assert ours.values.min() >= 0 and ours.values.max() <= 15 and stepped.min() >= -128 and stepped.max() <= 127


def test_weights_and_inputs_of_nothing_but_zeros_are_rounded() -> None:
    form = MatrixForm("int4", group=32)
    nothing = np.zeros((32, 64), np.float32)
    assert not dequantized(compensated(form, nothing, Compensation.of([], 64))).any()


def test_four_bits_are_made_once_and_kept(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2", **WIDE, dtype="bf16"), tmp_path / "cache"
    made = in_four_bits(folder, cache)
    times = {file.name: file.stat().st_mtime_ns for file in made.iterdir()}
    loaded = load_model(folder, cache, product_path="auto", page_tokens=32, quantize="int4")
    assert loaded.weights.products == "w4a8+w8a8-g64" and loaded.weights.dtype.startswith("int8.")
    assert {file.name: file.stat().st_mtime_ns for file in made.iterdir()} == times
    assert in_four_bits(made, cache) == made, "a model that is quantized already stays as it is"
    embedding = Checkpoint(made).tensors["model.embed_tokens.weight"]
    assert isinstance(embedding, Tensor)


def test_a_model_writes_its_text_in_the_same_way_each_time(tmp_path: Path) -> None:
    weights = open_weights(tiny(tmp_path / "model", "qwen3"), tmp_path / "cache")
    text = own_text(weights, windows=3, tokens=40)
    assert text.shape == (3, 40) and 0 <= text.min() and text.max() < 262
    assert np.array_equal(text, own_text(weights, windows=3, tokens=40)) and len(np.unique(text)) > 30


def test_texts_become_windows(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2")
    tokens = token_ids(folder, sample_text())
    assert windows_of(tokens, 4, 512).shape == (4, 512) and len(sample_text()) > 5000
    with pytest.raises(ModelError, match="512 are the least"):
        windows_of(tokens[:100], 4, 512)
    shutil.copy(folder / "config.json", folder / "tokenizer.json")
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        token_ids(folder, "text")


def test_two_runs_do_not_write_one_folder_and_a_torn_beginning_is_made_anew(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", **WIDE)
    run = quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows())
    next(run)
    with pytest.raises(ModelError, match="being written by another run"):
        next(quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows()))
    run.close()
    (tmp_path / "out.partial" / "about.json").write_text('{"model": ')
    list(quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows()))
    list(quantize(folder, tmp_path / "anew", "int8", tmp_path / "cache", windows()))
    assert contents(tmp_path / "out") == contents(tmp_path / "anew")


def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny(tmp_path / "model", "llama2", **WIDE)

    def full(path: Path, tensors: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("engine.quantization.folder.write_tensors", full)
    with pytest.raises(ModelError, match=r"No space left on device.*Free disk space, and start the same command again"):
        list(quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows()))
    monkeypatch.undo()
    assert len(list(quantize(folder, tmp_path / "out", "int8", tmp_path / "cache", windows()))) == 2
