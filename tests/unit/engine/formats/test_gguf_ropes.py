"""Ropes and ends of GGUF files: each key has the effect that the same field has in a folder, or is refused by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.builtin import tiny
from engine.families.rope import Rope
from engine.formats.errors import ModelError
from engine.formats.gguf_folder import folder_of_gguf
from engine.model.config import ModelConfig, read_config
from engine.model.rope import inverse_frequencies
from gateway.prompts.assets import load_assets
from tests.unit.engine.gguf_files import of_folder, write_gguf

HEADS, DIM = 4, 16
Made = tuple[Path, Any, Any]  # a folder, and metadata and tensors of the same model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tiny(tmp_path_factory.mktemp("folder") / "model", "llama2")
    return folder, *of_folder(folder, kinds=lambda name: "F32", arch="llama", heads=HEADS, kv_heads=HEADS)


def opened(place: Path, made: Made, more: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    _, metadata, own = made
    file = write_gguf(place / "tiny.gguf", metadata | more, own | (tensors or {}))
    return folder_of_gguf(file, place / "cache")


def with_fields(place: Path, made: Made, fields: dict[str, Any]) -> ModelConfig:
    """The configuration of the folder with these fields in its config.json."""
    config = json.loads((made[0] / "config.json").read_text())
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config | fields))
    return read_config(place)


YARN = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
HF_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"scaling.type": "linear", "scaling.factor": 2.0}, LINEAR),
        ({"scaling.factor": 2.0}, LINEAR),
        ({"scale_linear": 2.0}, LINEAR),
        ({"scaling.factor": 0.0, "scale_linear": 2.0}, LINEAR),
        ({"scaling.type": "none", "scaling.factor": 2.0}, None),
        ({"scaling.type": "linear", "scaling.factor": 1.0, "scaling.attn_factor": 1.0}, None),
        ({f"scaling.{key}": value for key, value in YARN.items()}, HF_YARN),
        (
            {
                f"scaling.{key}": value
                for key, value in (YARN | {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}).items()
            },
            HF_YARN | {"beta_fast": 16.0, "beta_slow": 2.0},
        ),
        ({f"scaling.{key}": value for key, value in (YARN | {"yarn_attn_factor": 1.138629436}).items()}, HF_YARN),
        ({"dimension_count": DIM, "scaling.finetuned": True, "scaling.original_context_length": 64}, None),
    ],
)
def test_a_key_has_the_effect_of_its_field(
    keys: dict[str, Any], scaling: dict[str, Any] | None, made: Made, tmp_path: Path
) -> None:
    found = read_config(opened(tmp_path, made, {f"llama.rope.{key}": value for key, value in keys.items()}))
    assert found == with_fields(tmp_path / "same", made, {"rope_scaling": scaling})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dimension_count", DIM // 2),
        ("dimension_sections", [4, 4]),
        ("freq_base_swa", 5e5),
        ("scaling.type", "longrope2"),
        ("scaling.attn_factor", 1.25),
        ("scaling.yarn_attn_factor", 0.5),
        ("scaling.yarn_ext_factor", 0.5),
        ("scaling.yarn_log_multiplier", 0.0707),
        ("scaling.alpha", 1000.0),
        ("scaling.of_the_future", 1),
    ],
)
def test_a_key_that_would_be_ignored_is_refused_by_name(key: str, value: Any, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"tiny.gguf: llama.rope.{key}: "):
        opened(tmp_path, made, {f"llama.rope.{key}": value})


def test_a_factor_of_attention_that_yarn_does_not_have_is_refused_by_name(made: Made, tmp_path: Path) -> None:
    """The converter writes the folder's `attention_factor` there, and 1 is another number than yarn's own."""
    keys = {f"llama.rope.scaling.{key}": value for key, value in (YARN | {"yarn_attn_factor": 1.0}).items()}
    with pytest.raises(ModelError, match=r"llama\.rope\.scaling\.yarn_attn_factor: is 1"):
        opened(tmp_path, made, keys)


def factors(rope: Rope) -> tuple[str, tuple[int, ...], bytes]:
    """The tensor by which llama.cpp divides frequencies."""
    plain = inverse_frequencies(Rope(rope.theta), DIM)
    divided = (plain / inverse_frequencies(rope, DIM)).astype(np.float32)
    return "F32", divided.shape, divided.tobytes()


@pytest.mark.parametrize("factor", [8.0, 32.0, 4.0])
def test_the_frequencies_of_llama_3_are_those_of_its_folder(factor: float, made: Made, tmp_path: Path) -> None:
    rope = Rope(5e5, "llama3", factor, 1.0, 4.0, 8192)
    keys, tensors = {"llama.rope.freq_base": 5e5}, {"rope_freqs.weight": factors(rope)}
    assert read_config(opened(tmp_path, made, keys, tensors)).rope == rope


def test_frequencies_of_another_scaling_are_refused_by_name(made: Made, tmp_path: Path) -> None:
    other = factors(Rope(5e5, "llama3", 8.0, 1.0, 4.0, 2048))
    for at, (keys, tensor) in enumerate(
        (
            ({}, other),
            ({}, ("F32", (DIM,), bytes(4 * DIM))),
            ({"llama.rope.scaling.factor": 2.0}, factors(Rope(5e5, "llama3", 8.0, 1.0, 4.0, 8192))),
        )
    ):
        (tmp_path / str(at)).mkdir()
        with pytest.raises(ModelError, match=r"tiny\.gguf: rope_freqs\.weight: "):
            opened(tmp_path / str(at), made, {"llama.rope.freq_base": 5e5} | keys, {"rope_freqs.weight": tensor})
    long = {
        f"rope_factors_{name}.weight": ("F32", (DIM // 2,), np.ones(DIM // 2, np.float32).tobytes())
        for name in ("long", "short")
    }
    with pytest.raises(ModelError, match=r"rope_factors_long\.weight.*architecture llama"):
        opened(tmp_path, made, {}, long)


@pytest.mark.parametrize(
    ("ends", "ids"),
    [
        ({"eos": 5}, (5,)),
        ({"eos": 5, "eot": 7, "eom": 6}, (5, 6, 7)),
        ({"eos": 5, "eot": 5}, (5,)),
        ({"eot": 9}, (1, 9)),  # the file of the fixture has an end of texts
    ],
)
def test_every_end_that_a_file_names_ends_a_generation(
    ends: dict[str, int], ids: tuple[int, ...], made: Made, tmp_path: Path
) -> None:
    folder = opened(tmp_path, made, {f"tokenizer.ggml.{name}_token_id": token for name, token in ends.items()})
    assert load_assets(folder, "tiny").eos_ids == ids


@pytest.mark.parametrize("value", [262, "5", [5]])
@pytest.mark.parametrize("name", ["eos", "eot", "eom"])
def test_an_end_that_is_no_token_is_refused_by_name(name: str, value: Any, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"tiny\.gguf: tokenizer\.ggml\.{name}_token_id: "):
        opened(tmp_path, made, {f"tokenizer.ggml.{name}_token_id": value})
