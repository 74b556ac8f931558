"""A turned model computes the same function, and every machine turns it to the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.writing import write_safetensors
from engine.model.config import read_config
from engine.model.layout import read_tensors
from engine.quantization.plain_layer import PlainLayers
from engine.quantization.reading import EMBEDDING, HEAD, NORM, SourceModel
from engine.quantization.turning import ModelTurn, turned

FAMILIES = [
    ("llama2", {}),
    ("llama3", {"tied": True}),
    ("qwen2", {"tied": True}),
    ("qwen2", {"hidden": 96, "heads": 6, "kv_heads": 3}),
    ("qwen3", {}),
]


def source(folder: Path, *, turn: bool) -> SourceModel:
    config = read_config(folder)
    tensors = read_tensors(config, Checkpoint(folder))
    return SourceModel(config, tensors, ModelTurn(config.hidden, config.head_dim) if turn else None)


@pytest.mark.parametrize("size", [16, 64, 80, 96, 576, 896])
def test_a_turn_is_orthogonal_and_mixes(size: int) -> None:
    matrix = turned(np.eye(size))
    assert np.abs(matrix @ matrix.T - np.eye(size)).max() < 1e-12
    assert np.abs(matrix).max() < 3 / size**0.5 or size % 64, "no element of a result comes from one input alone"


def test_every_machine_turns_to_the_same_bits() -> None:
    values = np.arange(3 * 896, dtype=np.float64).reshape(3, 896) % 97 / 13
    assert blake3(turned(values).tobytes()).hexdigest(8) == "24c6df3b9517ec25"


def test_outliers_are_spread() -> None:
    vectors = np.random.default_rng(1).standard_normal((50, 896))
    vectors[:, 17] *= 100
    peak = np.abs(turned(vectors)).max(1) / np.sqrt(np.square(vectors).mean(1))
    assert peak.max() < 6 < (np.abs(vectors).max(1) / np.sqrt(np.square(vectors).mean(1))).mean()


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_a_turned_model_has_the_logits_of_the_model(
    family: str, options: dict[str, Any], tmp_path: Path, engine: Any, words: Callable[..., list[int]]
) -> None:
    folder = tiny(tmp_path / "model", family, **options)
    model = source(folder, turn=True)
    numbers = {name: model.edge(name, 0, shape[0]) for name, shape in model.edges().items()}
    for layer in range(model.config.layers):
        numbers |= {f"model.layers.{layer}.{name}": each for name, each in model.layer(layer).items()}
    assert set(model.edges()) == {EMBEDDING, NORM, HEAD}
    other = tiny(tmp_path / "turned", family, **options | {"tied": False})
    write_safetensors(
        other / "model.safetensors",
        "fp32",
        {name: each.shape for name, each in numbers.items()},
        lambda name, shape, first, count: numbers[name].reshape(-1)[first : first + count],
    )
    tokens = words(90)
    plain, after = (engine(each, product_path="fp32").logits(tokens) for each in (folder, other))
    assert np.abs(plain - after).max() < 2e-4
    assert not np.array_equal(
        source(folder, turn=False).layer(0)["mlp.up_proj.weight"], numbers["model.layers.0.mlp.up_proj.weight"]
    )


@pytest.mark.parametrize(("family", "options"), FAMILIES)
def test_plain_layers_compute_what_the_engine_computes(
    family: str, options: dict[str, Any], tmp_path: Path, engine: Any, words: Callable[..., list[int]]
) -> None:
    folder = tiny(tmp_path / "model", family, **options)
    model, tokens, heard = source(folder, turn=False), words(70), dict[str, int]()
    x = model.edge(EMBEDDING, 0, model.config.vocab)[tokens]
    layers = PlainLayers.of(model.config, 128)
    for layer in range(model.config.layers):
        x = layers.run(layer, model.layer(layer), x, lambda name, inputs: heard.update({name: inputs.shape[1]}))
    x = x / np.sqrt(np.square(x).mean(1, keepdims=True) + model.config.eps) * model.edge(NORM, 0, model.config.hidden)
    logits = x @ model.edge(EMBEDDING if model.config.tied else HEAD, 0, model.config.vocab).T
    assert np.abs(logits - engine(folder, product_path="fp32").logits(tokens)).max() < 2e-4
    config = model.config
    assert heard == {"qkv": config.hidden, "o": config.q_width, "gate_up": config.hidden, "down": config.ffn}
