"""Pages that hold keys and values in eight or four bits: rounded when they are written, so every way to the same text
reads the same numbers, in a class of its own."""

import json
from pathlib import Path

import numpy as np
import pytest

import baton_kernels
from engine.builtin import MODEL, tiny
from engine.formats.errors import ModelError
from engine.formats.quantized import kv_of
from engine.loading.loaded import load_model
from engine.model.weights import open_weights
from engine.quantization.perplexity import perplexity
from engine.quantization.text import sample_text, token_ids
from engine.selftest.identity import identify

CODED = ("int8", "fp8", "int4")


@pytest.mark.parametrize("kv", CODED)
@pytest.mark.parametrize("path", ["pairs", "fp32", "int8"])
def test_chunks_page_sizes_and_a_cached_prefix_give_the_bits_of_the_whole_text(tmp_path, engine, words, path, kv):
    folder, tokens = tiny(tmp_path / "model", "qwen3", dtype="bf16"), words(150)
    whole = engine(folder, product_path=path, kv=kv).logits(tokens)
    for page_tokens, chunk in ((16, 1), (32, 7), (64, 33)):
        one = engine(folder, product_path=path, kv=kv, page_tokens=page_tokens)
        assert np.array_equal(one.logits(tokens, chunk=chunk), whole), (page_tokens, chunk)
    one = engine(folder, product_path=path, kv=kv)
    one.logits(tokens[:64])
    assert np.array_equal(one.logits(tokens[64:], start=64), whole[64:]), "the first two pages were there"
    own = engine(folder, product_path=path).logits(tokens)
    off = np.abs(whole - own).max() / np.abs(own).max()
    assert 0 < off < {"int8": 0.05, "fp8": 0.1, "int4": 0.5}[kv]


@pytest.mark.parametrize("kv", CODED)
def test_coded_pages_are_a_class_of_their_own_whatever_the_page_size(tmp_path: Path, kv: str) -> None:
    folder, cache = tiny(tmp_path / "model", "llama2", dtype="bf16"), tmp_path / "cache"
    own = identify(open_weights(folder, cache), 32)
    coded = [identify(open_weights(folder, cache, kv=kv), size) for size in (16, 32, 64)]
    assert coded[0] == coded[1] == coded[2] and coded[0].fingerprint != own.fingerprint
    assert f"kv={baton_kernels.tiles('pairs', kv)[1]}" in coded[0].numerics and "kv=bf16" in own.numerics


def test_a_pool_of_codes_holds_nearly_twice_the_text_and_of_four_bits_nearly_four_times(tmp_path: Path) -> None:
    folder, cache = tiny(tmp_path / "model", "llama3", dtype="bf16"), tmp_path / "cache"
    sizes = {
        kv: load_model(folder, cache, product_path="auto", page_tokens=32, draft=folder, kv_dtype=kv).shape
        for kv in ("auto", *CODED)
    }
    dim = sizes["auto"].segments[0].head_dim
    for kv in CODED:
        codes = dim // 2 if kv == "int4" else dim
        assert sizes["auto"].page_bytes / sizes[kv].page_bytes == 2 * dim / (codes + 2), "the draft's pages, too"


@pytest.mark.parametrize(("kind", "kv"), [("int", "int8"), ("float", "fp8")])
def test_a_folder_says_how_its_pages_are_to_be(tmp_path: Path, kind: str, kv: str) -> None:
    folder = tiny(tmp_path / "model", "llama2", dtype="bf16")
    assert kv_of(folder) == "own"
    config = json.loads((folder / "config.json").read_text())
    scheme = {"num_bits": 8, "type": kind, "dynamic": True, "symmetric": True, "strategy": "attn_head"}
    wish = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {}}
    (folder / "config.json").write_text(
        json.dumps(config | {"quantization_config": wish | {"kv_cache_scheme": scheme}})
    )
    model = load_model(folder, tmp_path / "cache", product_path="auto", page_tokens=32)
    assert model.weights.kv == kv and f"kv={kv}" in model.identity.numerics
    other = load_model(folder, tmp_path / "cache", product_path="auto", page_tokens=32, kv_dtype="fp8")
    assert other.weights.kv == "fp8", "a setting wins"
    for wrong in ({"num_bits": 4, "type": "int"}, {"num_bits": [8], "type": {}}, "int8"):
        broken = config | {"quantization_config": wish | {"kv_cache_scheme": wrong}}
        (folder / "config.json").write_text(json.dumps(broken))
        with pytest.raises(ModelError, match=r"quantization_config: kv_cache_scheme .* is not supported"):
            kv_of(folder)


@pytest.mark.parametrize(("kv", "most"), [("int8", 0.005), ("fp8", 0.03), ("int4", 0.1)])
def test_what_coded_pages_cost_the_model_at_hand(tmp_path: Path, kv: str, most: float) -> None:
    folder = MODEL
    tokens = token_ids(folder, sample_text())[:1500]
    before, after = (perplexity(open_weights(folder, tmp_path / "cache", kv=each), tokens) for each in ("own", kv))
    assert before != after and after / before - 1 <= most
