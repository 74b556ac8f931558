"""Broken model folders end in errors that name the file, the field and what to do."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.families.rope import Rope
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import WHOLE_FILE, ModelError
from engine.model.config import read_config
from engine.model.weights import open_weights


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def rewrite(edit: Callable[[dict[str, Any]], Any], *, data: bytes | None = None) -> Callable[[Path], None]:
    """Edits the header of model.safetensors."""

    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + (raw[8 + length :] if data is None else data))

    return act


def cut(size: int) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:size])

    return act


def config(**fields: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, **fields)


NORM = "model.norm.weight"
LAST = "model.layers.1.mlp.down_proj.weight"
TENSORS = "model.safetensors"
BROKEN: list[tuple[Callable[[Path], Any], str, str]] = [
    (lambda folder: (folder / "config.json").unlink(), "config.json", "file"),
    (lambda folder: (folder / "config.json").write_text("{"), "config.json", "file"),
    (lambda folder: (folder / "config.json").write_text("[]"), "config.json", "file"),
    (config(architectures=["GPT2LMHeadModel"]), "config.json", "architectures"),
    (config(architectures=["Qwen2ForCausalLM"]), "config.json", "model_type"),
    (config(model_type="mistral"), "config.json", "model_type"),
    (config(quantization_config={"bits": 4}), "config.json", "quantization_config"),
    (config(hidden_act="gelu"), "config.json", "hidden_act"),
    (config(sliding_window=256), "config.json", "sliding_window"),
    (
        config(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window="511"),
        "config.json",
        "sliding_window",
    ),
    (config(layer_types=["full_attention", "sliding_attention"]), "config.json", "layer_types"),
    (config(mlp_bias=True), TENSORS, "model.layers.0.mlp.gate_proj.bias"),
    (config(architectures=["MistralForCausalLM"], model_type="mistral", mlp_bias=True), "config.json", "mlp_bias"),
    (config(hidden_size="64"), "config.json", "hidden_size"),
    (config(num_hidden_layers=None), "config.json", "num_hidden_layers"),
    (config(num_key_value_heads=3), "config.json", "num_key_value_heads"),
    (config(head_dim=24), "config.json", "head_dim"),
    (config(rms_norm_eps=-1.0), "config.json", "rms_norm_eps"),
    (config(tie_word_embeddings="yes"), "config.json", "tie_word_embeddings"),
    (config(rope_scaling={"rope_type": "proportional"}), "config.json", "rope_scaling.rope_type"),
    (config(rope_scaling={"rope_type": "longrope", "short_factor": [1.0]}), "config.json", "short_factor"),
    (config(rope_scaling={"rope_type": "linear"}), "config.json", "factor"),
    (config(rope_parameters={"full_attention": {"rope_theta": 1e4}}), "config.json", "rope_parameters"),
    (config(num_hidden_layers=1), TENSORS, "model.layers.1."),
    (config(num_hidden_layers=3), TENSORS, "model.layers.2."),
    (config(intermediate_size=192), TENSORS, "model.layers.0.mlp.gate_proj.weight"),
    (config(vocab_size=300), TENSORS, "model.embed_tokens.weight"),
    (lambda folder: (folder / TENSORS).unlink(), TENSORS, "file"),
    (cut(0), TENSORS, "file"),
    (cut(100), TENSORS, "header"),
    (cut(-1), TENSORS, LAST),
    (cut(-5000), TENSORS, LAST),
    (lambda folder: (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes() + b"more"), TENSORS, "file"),
    (lambda folder: (folder / TENSORS).write_bytes(b"\xff" * 64), TENSORS, "header"),
    (lambda folder: (folder / TENSORS).write_bytes(struct.pack("<Q", 8) + b"not json"), TENSORS, "header"),
    (rewrite(lambda header: header.pop(NORM)), TENSORS, ""),
    (rewrite(lambda header: header[NORM].update(dtype="F8_E4M3")), TENSORS, NORM),
    (rewrite(lambda header: header[NORM].update(dtype="F16")), TENSORS, NORM),
    (rewrite(lambda header: header[NORM].update(shape=[-64])), TENSORS, NORM),
    (rewrite(lambda header: header[NORM].update(shape=[65])), TENSORS, NORM),
    (rewrite(lambda header: header[NORM].pop("data_offsets")), TENSORS, NORM),
    (rewrite(lambda header: header[LAST].update(data_offsets=[0, 1 << 40])), TENSORS, LAST),
    (rewrite(lambda header: header.update({"extra": header.pop(NORM)})), TENSORS, NORM),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_broken_folder_is_refused_by_file_field_and_remedy(number: int, tmp_path: Path) -> None:
    damage, file, field = BROKEN[number]
    folder = tiny(tmp_path / "model", "llama2")
    open_weights(folder, tmp_path / "sound")
    damage(folder)
    with pytest.raises(ModelError) as caught:
        open_weights(folder, tmp_path / "cache")
    error = caught.value
    assert error.path == folder / file and field in error.field
    named = "" if error.field == WHOLE_FILE else error.field
    assert all(part in str(error) for part in (str(folder / file), named, error.problem, error.remedy))
    assert f"{WHOLE_FILE}: " not in str(error)
    assert len(error.remedy) > 10 and not list((tmp_path / "cache").glob("*.weights"))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", shards=2)
    gone = folder / "model-00002-of-00002.safetensors"
    gone.unlink()
    with pytest.raises(ModelError) as caught:
        Checkpoint(folder)
    assert caught.value.path == gone and "index.json" in str(caught.value)


def test_an_index_cannot_name_files_outside_the_folder(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../model/config.json"}}))
    with pytest.raises(ModelError, match="names it"):
        Checkpoint(folder)


def test_mixed_dtypes_are_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", shards=2)
    other = tiny(tmp_path / "other", "llama2", shards=2, dtype="bf16")
    name = "model-00002-of-00002.safetensors"
    (folder / name).write_bytes((other / name).read_bytes())
    with pytest.raises(ModelError) as caught:
        open_weights(folder, tmp_path / "cache")
    assert caught.value.path == folder / name and "bf16" in caught.value.problem


def test_pairs_on_another_dtype_names_the_setting(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama2", dtype="fp16")
    with pytest.raises(ModelError) as caught:
        open_weights(folder, tmp_path / "cache", product_path="pairs")
    assert caught.value.field == "product_path" and "fp16" in str(caught.value)
    with pytest.raises(ModelError, match="product_path"):
        open_weights(folder, tmp_path / "cache", product_path="fast")


def test_rope_is_read_in_both_spellings(tmp_path: Path) -> None:
    folder = tiny(tmp_path / "model", "llama3")
    old = read_config(folder)
    assert old.rope == Rope(5e5, "llama3", 8.0, 1.0, 4.0, 64)
    scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
    change(folder, rope_theta=None, rope_scaling=None, rope_parameters=scaling | {"rope_theta": 5e5})
    assert read_config(folder) == old


def test_values_of_every_dtype_are_read_exactly(tmp_path: Path) -> None:
    wide = Checkpoint(tiny(tmp_path / "fp32", "llama2")).tensors[NORM].values
    half = Checkpoint(tiny(tmp_path / "fp16", "llama2", dtype="fp16")).tensors[NORM].values
    brain = Checkpoint(tiny(tmp_path / "bf16", "llama2", dtype="bf16")).tensors[NORM].values
    assert (half == wide.astype(np.float16)).all() and not brain.flags.writeable
    near = (brain.astype(np.uint32) << 16).view(np.float32)
    assert (np.abs(near - wide) <= np.abs(wide) * 2.0**-8).all() and not (near == wide).all()
