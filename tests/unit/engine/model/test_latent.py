"""Latent attention: what pages hold of it, how near it is to transformers, and what is refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import baton_kernels as kernels
from baton_kernels import machine
from engine.adapters.modules import adapted_products
from engine.adapters.reading import read_adapter
from engine.builtin import tiny
from engine.formats.checkpoint import Checkpoint
from engine.formats.errors import ModelError
from engine.formats.stored import MadeMatrix, WidenedMatrix
from engine.model.config import read_config
from engine.model.latent_tensors import over_latents
from engine.model.page_memory import layer_bytes
from engine.model.weights import open_weights
from tests.families.folders import saved
from tests.harness.adapters import make_adapter
from tests.unit.engine.test_transformers import logits_of, oracle

Words = Callable[..., list[int]]
DIM = 48 + 16  # the latent and what is rotated


@pytest.fixture
def bodies() -> Iterator[list[str]]:
    """The bodies that this machine has for dense products, the plain one among them."""
    yield [*machine.bodies()["product.fp32"]]
    machine.choose(None)


def test_pages_hold_one_latent_for_all_heads(tmp_path: Path, engine: Any) -> None:
    folder = saved(tmp_path / "model", "deepseek_v2", {}, dtype=torch.bfloat16)
    ours = engine(folder)
    assert (ours.weights.config.kv_heads, ours.weights.config.head_dim) == (1, DIM)
    assert layer_bytes(ours.weights, 32) == 2 * 32 * DIM * 2
    config = read_config(folder)
    assert config.heads * (24 + 16 + 20) * 32 * 2 > layer_bytes(ours.weights, 32), "keys and values of all heads"


@pytest.mark.parametrize(("path", "bound"), [("pairs", 0.05), ("int8", 0.25)])
def test_rounded_matrices_over_the_latent_stay_near_transformers(
    path: str, bound: float, tmp_path: Path, engine: Any, words: Words
) -> None:
    folder, prompt = saved(tmp_path / "model", "deepseek_v2", {}, dtype=torch.bfloat16), words(60)
    expected = logits_of(oracle(folder), prompt)
    difference = np.abs(engine(folder, product_path=path).logits(prompt) - expected)
    assert 0 < np.sqrt((difference**2).mean()) <= bound * expected.std()


def test_heads_of_the_real_models_size_agree_with_transformers(tmp_path: Path, engine: Any, words: Words) -> None:
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    folder = saved(tmp_path / "model", "deepseek_v2", sizes | {"num_hidden_layers": 2}, std=0.05)
    ours, prompt = engine(folder, product_path="fp32"), words(90)
    assert ours.weights.config.head_dim == 576
    logits = ours.logits(prompt)
    assert np.abs(logits - logits_of(oracle(folder), prompt)).max() <= 1e-4 < np.abs(logits).max()
    assert ours.logits(prompt, chunk=7).tobytes() == logits.tobytes()


def test_sharp_attention_stays_near_transformers(tmp_path: Path, engine: Any, words: Words) -> None:
    """With one chain for each score it is 1.7e-4."""
    rope = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    sizes = {"kv_lora_rank": 112, "qk_nope_head_dim": 8, "num_hidden_layers": 5, "first_k_dense_replace": 0}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 1, "n_shared_experts": 1, "intermediate_size": 64}
    fields = sizes | experts | {"rope_parameters": rope, "tie_word_embeddings": True}
    folder = saved(tmp_path / "model", "deepseek_v2", fields, seed=83)
    ours, apart = engine(folder, product_path="fp32"), engine(folder, product_path="fp32", product=_product)
    for seed in (2, 6):
        text = words(114, seed)
        logits = ours.logits(text)
        assert np.abs(logits - logits_of(oracle(folder), text)).max() <= 1.2e-4
        assert apart.logits(text).tobytes() == logits.tobytes(), "a call of Python for every kernel"


def test_matrices_over_the_latent_have_the_same_bits_with_every_body(tmp_path: Path, bodies: list[str]) -> None:
    folder = saved(tmp_path / "model", "deepseek_v2", {"num_hidden_layers": 1})
    found = over_latents(read_config(folder), Checkpoint(folder))
    made = [each for each in found.tensors.values() if isinstance(each, MadeMatrix)]
    assert len(made) == 4 and not any("kv_b_proj" in name for name in found.tensors)
    results = set()
    for body in bodies:
        machine.choose(body)
        results.add(tuple(each.read().tobytes() for each in made))
    assert len(results) == 1


def test_a_quantized_checkpoint_of_latents_is_refused_by_tensor(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "deepseek_v2", {"num_hidden_layers": 1}, dtype=torch.bfloat16)
    checkpoint = Checkpoint(folder)
    name = "model.layers.0.self_attn.kv_b_proj.weight"
    tensors = checkpoint.tensors | {name: _quantized(checkpoint, name)}
    with pytest.raises(ModelError, match="latent attention joins it with others") as refused:
        over_latents(read_config(folder), checkpoint.holding(tensors))
    assert refused.value.field == name


def test_an_adapter_of_the_attention_is_refused_by_module(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "deepseek_v2", {})
    config = read_config(folder)
    known = {module for product in adapted_products(config) for module in product.parts}
    assert known == {f"model.layers.0.mlp.{part}" for part in ("gate_proj", "up_proj", "down_proj")}
    adapter = make_adapter(tmp_path / "adapter", tiny(tmp_path / "other", "llama3"), targets=("q_proj",))
    with pytest.raises(ModelError, match=r"belongs to model\.layers\.0\.self_attn\.q_proj"):
        read_adapter(adapter, config)


def test_a_checkpoint_that_lacks_a_part_of_the_latent_is_refused_by_tensor(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "deepseek_v2", {"num_hidden_layers": 1})
    checkpoint = Checkpoint(folder)
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
    tensors = {each: tensor for each, tensor in checkpoint.tensors.items() if each != name}
    with pytest.raises(ModelError, match="tensor is missing") as refused:
        over_latents(read_config(folder), checkpoint.holding(tensors))
    assert refused.value.field == name


def test_the_hash_is_that_of_the_checkpoints_own_tensors(tmp_path: Path) -> None:
    one, same, other = (saved(tmp_path / str(seed), "deepseek_v2", {}, seed=max(1, seed)) for seed in range(3))
    hashes = [open_weights(folder, tmp_path / "cache").model_hash for folder in (one, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]


def _product(*arrays: Any, **named: Any) -> object:
    """The product, as another function: the pass then calls every kernel of a layer on its own."""
    return kernels.product(*arrays, **named)


def _quantized(checkpoint: Checkpoint, name: str) -> Any:
    tensor = checkpoint.tensors[name]
    rows, columns = tensor.shape
    return WidenedMatrix(tensor.path, "fp8", (rows, columns), (), lambda first, last: np.zeros((last - first, columns)))
