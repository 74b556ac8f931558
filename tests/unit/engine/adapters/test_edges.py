"""Adapters of embedding and head: their logits are those of peft, whoever else is in the batch."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from engine.adapters.reading import TENSORS, read_adapter
from engine.builtin import tiny
from engine.formats.checkpoint import read_file
from engine.formats.errors import ModelError
from engine.formats.writing import stored, write_tensors
from engine.model.config import read_config
from engine.step.adapted import AdapterWeights
from engine.step.plan import Piece, Plan, WantedRows
from mesh.messages.jobs import Pooling
from tests.families.folders import saved
from tests.harness.adapters import ALL, PREFIX, make_adapter
from tests.unit.engine.test_transformers import logits_of, oracle

Words = Callable[..., list[int]]
EDGES = ("embed_tokens", "lm_head")
TIED = {"tie_word_embeddings": True}
GEMMA = {"tie_word_embeddings": True, "num_hidden_layers": 2, "layer_types": None}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # family, fields of the model, fields of the adapter
    "head": ("llama", {}, {"target_modules": ["lm_head"]}),
    "embedding": ("llama", {}, {"target_modules": ["embed_tokens"]}),
    "both and a layer": ("qwen2", {}, {"target_modules": [*EDGES, "q_proj"], "rank_pattern": {"lm_head": 3}}),
    "saved head": ("llama", {}, {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
    "saved embedding": ("llama", {}, {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"]}),
    "both saved": ("qwen2", {}, {"target_modules": ["v_proj"], "modules_to_save": list(EDGES)}),
    "one of each": ("llama", {}, {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]}),
    "tied head": ("llama", TIED, {"target_modules": ["lm_head"]}),
    "tied embedding": ("llama", TIED, {"target_modules": ["embed_tokens"]}),
    "tied both": ("qwen2", TIED, {"target_modules": list(EDGES)}),
    "tied and kept so": ("llama", TIED, {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "tied, saved embedding": ("llama", TIED, {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"]}),
    "tied, saved head": ("llama", TIED, {"target_modules": ["v_proj"], "modules_to_save": ["lm_head"]}),
    "tied, saved and kept so": (
        "llama",
        TIED,
        {"target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
    "scaled embedding": ("gemma3_text", TIED, {"target_modules": [*EDGES, "o_proj"]}),
    "scaled, saved embedding": ("gemma2", TIED, {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]}),
    "multipliers": ("granite", {}, {"target_modules": list(EDGES), "use_rslora": True}),
}


def trained(folder: Path, model: Path, settings: dict[str, Any], *, change_base: bool = False) -> Path:
    """An adapter as peft saves it, with random numbers. `change_base`: and with another matrix below its LoRA."""
    torch.manual_seed(3)
    made = peft.get_peft_model(oracle(model), peft.LoraConfig(r=5, lora_alpha=10, task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for values in made.parameters():
            if values.requires_grad:
                values.add_(torch.randn_like(values) * 0.1)
        if change_base:  # where both are one tensor, the name of one is that of both
            below = next(each for name, each in made.named_modules() if name.endswith("base_layer"))
            below.weight.add_(torch.randn_like(below.weight) * 0.1)
    made.save_pretrained(str(folder))
    return folder


def theirs(folder: Path, model: Path, text: list[int]) -> Any:
    return logits_of(peft.PeftModel.from_pretrained(oracle(model), str(folder)).eval(), text)


def ours_with(ours: Any, adapter: AdapterWeights, text: list[int]) -> Any:
    return ours.runner.compute_logits(Plan(0, (ours.piece(text, adapter=adapter),)))[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case: str, tmp_path: Path, engine: Any, words: Words) -> None:
    family, fields, settings = CASES[case]
    model = saved(tmp_path / "model", family, fields)
    folder = trained(tmp_path / "adapter", model, settings)
    ours, text = engine(model), words(50)
    expected, base = theirs(folder, model, text), ours.logits(text)
    adapter = read_adapter(folder, read_config(model), base=model)
    assert np.abs(ours_with(ours, adapter, text) - expected).max() < 1e-4
    assert np.abs(base - expected).max() > 0.05, "the adapter changes the answers"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fields", [{}, TIED], ids=["apart", "tied"])
@pytest.mark.parametrize("target", EDGES)
def test_a_base_that_was_saved_with_the_adapter_counts_as_in_peft(
    target: str, fields: dict[str, Any], tmp_path: Path, engine: Any, words: Words
) -> None:
    """peft saves the matrix below a LoRA of embedding or head, and puts it into the model. In a tied one it is both."""
    model = saved(tmp_path / "model", "llama", fields)
    same = trained(tmp_path / "same", model, {"target_modules": [target]})
    other = trained(tmp_path / "other", model, {"target_modules": [target]}, change_base=True)
    assert any(name.endswith("base_layer.weight") for name in read_file(same / TENSORS))
    kept, changed = (read_adapter(each, read_config(model), base=model) for each in (same, other))
    assert kept.edges is not None and kept.edges.embedding is None and kept.edges.head is None, "they are the model's"
    text = words(40)
    assert np.abs(ours_with(engine(model), changed, text) - theirs(other, model, text)).max() < 1e-4
    assert changed.edges is not None and changed.digest != kept.digest
    both = changed.edges.embedding is not None and changed.edges.head is not None
    assert both == bool(fields)
    if both:
        assert changed.edges.nbytes < 2 * len(changed.edges.head) + kept.nbytes, "one matrix for both"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["fp32", "pairs", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_bits_depend_on_no_other_row(path: str, dtype: str, tmp_path: Path, engine: Any, words: Words) -> None:
    model = tiny(tmp_path / "model", "qwen2", dtype="fp32" if path == "fp32" else "bf16", hidden=128, ffn=256, heads=8)
    config = read_config(model)
    kinds: list[dict[str, Any]] = [
        {"targets": (*ALL, *EDGES)},
        {"targets": ("q_proj",), "saved": EDGES},
        {"targets": ("lm_head",), "saved": ("embed_tokens",), "rank": 3},
        {"targets": ALL},
    ]
    adapters: list[Any] = [
        read_adapter(make_adapter(tmp_path / f"{seed}", model, seed=seed, dtype=dtype, **kind), config, base=model)
        for seed, kind in enumerate(kinds)
    ]
    adapters.append(None)
    ours = engine(model, product_path=path, pool_pages=32)
    texts = [words(count, seed=count) for count in (37, 20, 64, 1, 9)]

    def piece(number: int, first: int = 0, last: int | None = None) -> Piece:
        tokens, table = texts[number][first:last], tuple(range(4 * number, 4 * number + 4))
        found: Piece = ours.piece(tokens, first, key=number, pages=table, adapter=adapters[number])
        return found

    alone = [ours.runner.compute_logits(Plan(0, (piece(number),)))[0] for number in range(5)]
    for order in ((0, 1, 2, 3, 4), (4, 2, 0, 3, 1)):
        together = ours.runner.compute_logits(Plan(0, tuple(piece(number) for number in order)))
        for number, found in zip(order, together, strict=True):
            np.testing.assert_array_equal(found, alone[number])
    for number in (0, 1, 2):
        chunks = [
            ours.runner.compute_logits(Plan(0, (piece(number, at, at + 5), piece(4))))[0]
            for at in range(0, len(texts[number]), 5)
        ]
        np.testing.assert_array_equal(np.concatenate(chunks), alone[number])
    few = [replace(piece(number), sampled=1) for number in range(5)]
    for number, found in enumerate(ours.runner.compute_logits(Plan(0, tuple(few)))):
        np.testing.assert_array_equal(found, alone[number][-1:])
    assert not np.array_equal(alone[0][0], ours.logits(texts[0])[0]), "the adapter changes the answers"


def test_an_examination_is_computed_with_the_adapters_head(tmp_path: Path, engine: Any, words: Words) -> None:
    model = tiny(tmp_path / "model", "llama3", dtype="bf16")
    adapter = read_adapter(
        make_adapter(tmp_path / "a", model, targets=("lm_head",), saved=("embed_tokens",)), read_config(model)
    )
    ours, text = engine(model), words(30)
    wanted = WantedRows(tuple(text[1:]))
    examined = ours.piece(text, sampled=0, wanted=wanted, adapter=adapter)
    sampling = ours.piece(words(9), key=2, sampled=1, pages=(20,))
    pooled = replace(examined, key=3, pages=(22, 23), wanted=WantedRows(pooling=Pooling.LAST))
    result = ours.runner.compute(Plan(0, (sampling, examined, pooled)))
    logits = ours_with(ours, adapter, text).astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    found = np.frombuffer(result.reports[1].logprobs, "<f4")
    np.testing.assert_allclose(found, logprobs[np.arange(29), text[1:]], atol=1e-4)
    alone = ours.runner.compute(Plan(1, (sampling,)))
    assert result.sampled[0] == alone.sampled[0] and result.reports[2].pooled


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object], **fields: Any) -> None:
    tensors = {name: (each.dtype, np.array(each.values)) for name, each in read_file(folder / TENSORS).items()}
    change(tensors)
    write_tensors(folder / "aside", tensors)
    (folder / "aside").rename(folder / TENSORS)
    place = folder / "adapter_config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | fields))


def unchanged(tensors: dict[str, Any]) -> None:
    pass


def grown(tensors: dict[str, Any]) -> None:
    dtype, values = tensors[f"{PREFIX}lm_head.weight"]
    tensors[f"{PREFIX}lm_head.weight"] = dtype, np.concatenate([values, values[:2]])


def grown_embedding(tensors: dict[str, Any]) -> None:
    name = f"{PREFIX}model.embed_tokens.lora_embedding_A"
    dtype, values = tensors[name]
    tensors[name] = dtype, np.concatenate([values, values[:, :2]], 1)


def linear_embedding(tensors: dict[str, Any]) -> None:
    tensors[f"{PREFIX}model.embed_tokens.lora_A.weight"] = tensors.pop(f"{PREFIX}model.embed_tokens.lora_embedding_A")


def infinite(tensors: dict[str, Any]) -> None:
    tensors[f"{PREFIX}lm_head.weight"][1][2, 1] = np.inf


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "another module": (
        lambda folder: rewrite(folder, unchanged, modules_to_save=["lm_head", "score"]),
        "modules_to_save: names 'score', and only model.embed_tokens and lm_head can be replaced",
    ),
    "a lost matrix": (
        lambda folder: rewrite(folder, lambda found: found.pop(f"{PREFIX}lm_head.weight")),
        "modules_to_save: the file has no tensor of lm_head",
    ),
    "no list": (lambda folder: rewrite(folder, unchanged, modules_to_save="lm_head"), "modules_to_save: is not a list"),
    "more tokens": (
        lambda folder: rewrite(folder, grown),
        r"lm_head.weight: has numbers for 264 tokens, and the model's vocabulary has 262: .*lacks.*merge_and_unload",
    ),
    "more tokens of a LoRA": (
        lambda folder: rewrite(folder, grown_embedding),
        r"embed_tokens.lora_embedding_A: has numbers for 264 tokens, .*merge_and_unload",
    ),
    "another kind": (lambda folder: rewrite(folder, linear_embedding), "is of another kind of module than model.embed"),
    "a lost target": (
        lambda folder: rewrite(folder, unchanged, target_modules=["embed_tokens", "lm_head"]),
        "has no tensors of 'lm_head'",
    ),
    "infinity": (lambda folder: rewrite(folder, infinite), r"lm_head: is inf at \[2, 1\]"),
    "embeddings of vLLM": (
        lambda folder: (folder / "new_embeddings.safetensors").write_bytes(b""),
        "new_embeddings.safetensors: holds embeddings of tokens that the model lacks",
    ),
    "tokens of its own": (
        lambda folder: (folder / "added_tokens.json").write_text('{"<think>": 300}'),
        "has tokens that the model's tokenizer lacks: '<think>'.*remove the tokenizer's files",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_computed_is_refused_by_its_name(fault: str, tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3")
    folder = make_adapter(tmp_path / "adapter", model, targets=("embed_tokens",), saved=("lm_head",))
    read_adapter(folder, read_config(model), base=model)
    change, message = FAULTS[fault]
    change(folder)
    with pytest.raises(ModelError, match=f"(?s){message}"):
        read_adapter(folder, read_config(model), base=model)


def test_a_tokenizer_that_the_model_knows_is_no_fault(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3")
    folder = make_adapter(tmp_path / "adapter", model)
    (folder / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    (folder / "added_tokens.json").write_text('{"[PAD]": 400}')
    with pytest.raises(ModelError, match=r"\[PAD\]"):
        read_adapter(folder, read_config(model), base=model)
    (folder / "tokenizer_config.json").write_text('{"pad_token": "[PAD]"}')
    read_adapter(folder, read_config(model), base=model)


def test_a_matrix_that_memory_has_no_room_for_is_refused_by_module(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3")
    folder = make_adapter(tmp_path / "adapter", model, targets=("q_proj",), saved=EDGES)
    config = read_config(model)
    size = read_adapter(folder, config, base=model).edges.nbytes  # type: ignore[union-attr]
    read_adapter(folder, config, base=model, most_bytes=size)
    with pytest.raises(
        ModelError, match=rf"lm_head: is a whole matrix.* {size} bytes, .*allows {size - 1}. Raise lora"
    ):
        read_adapter(folder, config, base=model, most_bytes=size - 1)


def test_a_tied_pair_that_differs_is_refused(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3", tied=True)
    folder = make_adapter(tmp_path / "pairs", model, targets=EDGES, ensure_weight_tying=True)
    with pytest.raises(ModelError, match=r"lm_head: differs from that of model.embed_tokens, and ensure_weight_tying"):
        read_adapter(folder, read_config(model), base=model)
    both = make_adapter(tmp_path / "saved", model, targets=("q_proj",), saved=EDGES, ensure_weight_tying=True)
    with pytest.raises(ModelError, match=r"lm_head: differs from model.embed_tokens, and both are one tensor"):
        read_adapter(both, read_config(model), base=model)


def test_a_base_in_another_dtype_is_the_models_own(tmp_path: Path) -> None:
    model = tiny(tmp_path / "model", "llama3")
    own = read_file(model / "model.safetensors")["lm_head.weight"]
    folder = make_adapter(tmp_path / "adapter", model, targets=("lm_head",))
    name = f"{PREFIX}lm_head.base_layer.weight"
    rewrite(folder, lambda found: found.update({name: ("bf16", stored(own.values, "bf16"))}))
    edges = read_adapter(folder, read_config(model), base=model).edges
    assert edges is not None and edges.head is None and edges.head_delta is not None
