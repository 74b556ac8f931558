"""An adapter's answers are those of the model into which it is merged, whoever else is in the batch."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import baton_kernels
from engine.adapters.reading import read_adapter
from engine.builtin import tiny
from engine.formats.checkpoint import read_file
from engine.formats.errors import ModelError
from engine.formats.writing import write_tensors
from engine.model.config import read_config
from engine.step.plan import Piece, Plan
from tests.families.folders import OWN, saved
from tests.harness.adapters import ALL, EVERY, PREFIX, make_adapter, merge
from tests.unit.engine.adapters.test_edges import theirs

Words = Callable[..., list[int]]
BODIES = [body for body in ("plain", "avx2", "avx512") if body in baton_kernels.bodies()["rows"]]


def scale(module: str) -> float:
    return 2.0


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
@pytest.mark.parametrize("targets", [ALL, ("q_proj", "v_proj"), ("down_proj",), ("up_proj", "o_proj")])
def test_logits_are_those_of_the_merged_model(
    family: str, targets: tuple[str, ...], tmp_path: Path, engine: Any, words: Words
) -> None:
    model = tiny(tmp_path / "model", family)
    folder = make_adapter(tmp_path / "adapter", model, targets=targets)
    adapter = read_adapter(folder, read_config(model))
    merged = engine(merge(model, folder, tmp_path / "merged", scale))
    ours, text = engine(model), words(70)
    expected, base = merged.logits(text), ours.logits(text)
    (found,) = ours.runner.compute_logits(Plan(0, (ours.piece(text, adapter=adapter),)))
    assert np.abs(found - expected).max() < 1e-4
    assert np.abs(base - expected).max() > 0.05, "the adapter changes the answers"


@pytest.mark.parametrize("family", sorted(set(OWN) - {"llama", "qwen2", "qwen3"}))
def test_every_family_adapts_the_modules_that_it_names(family: str, tmp_path: Path, engine: Any, words: Words) -> None:
    """Stacked projections, heads whose rows stand in another order, norms behind a product, an MLP without a gate, each
    expert and the one that computes every row."""
    model = saved(tmp_path / "model", family, {})
    folder = make_adapter(tmp_path / "adapter", model, targets=EVERY)
    adapter = read_adapter(folder, read_config(model))
    merged, ours, text = engine(merge(model, folder, tmp_path / "merged", scale)), engine(model), words(50, vocab=128)
    expected, base = merged.logits(text), ours.logits(text)
    (found,) = ours.runner.compute_logits(Plan(0, (ours.piece(text, adapter=adapter),)))
    assert np.abs(found - expected).max() < 1e-4 < np.abs(base - expected).max() / 50


def test_ranks_and_scales_of_single_modules_are_those_of_the_configuration(
    tmp_path: Path, engine: Any, words: Words
) -> None:
    model, text = tiny(tmp_path / "model", "llama3"), words(40)
    alphas = {r"layers\.1\.mlp\.down_proj": 40, "q_proj": 3}
    ranks = {"k_proj": 5, "up_proj": 33}
    folder = make_adapter(tmp_path / "a", model, rank=4, ranks=ranks, alpha_pattern=alphas, use_rslora=True)

    def scales(module: str) -> float:
        rank = ranks.get(module.rpartition(".")[2], 4)
        alpha = 3 if module.endswith("q_proj") else 40 if module.endswith("1.mlp.down_proj") else 8
        return float(alpha / rank**0.5)

    adapter = read_adapter(folder, read_config(model))
    ours, merged = engine(model), engine(merge(model, folder, tmp_path / "merged", scales))
    (found,) = ours.runner.compute_logits(Plan(0, (ours.piece(text, adapter=adapter),)))
    assert np.abs(found - merged.logits(text)).max() < 1e-4
    assert adapter.rank == 33


@pytest.mark.parametrize("path", ["fp32", "pairs", "int8", "int4"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_bits_depend_on_no_other_row(path: str, dtype: str, tmp_path: Path, engine: Any, words: Words) -> None:
    """The same text alone, in chunks, and between texts of the base and of other adapters."""
    model = tiny(tmp_path / "model", "qwen2", dtype="fp32" if path == "fp32" else "bf16", hidden=128, ffn=256, heads=8)
    config = read_config(model)
    adapters = [
        read_adapter(make_adapter(tmp_path / f"a{seed}", model, seed=seed, rank=rank, dtype=dtype), config)
        for seed, rank in enumerate((8, 3, 16))
    ]
    adapters.append(None)  # type: ignore[arg-type]
    ours = engine(model, product_path=path, pool_pages=32)
    texts = [words(count, seed=count) for count in (37, 1, 20, 64)]

    def piece(number: int, adapter: Any, first: int = 0, last: int | None = None) -> Piece:
        tokens, table = texts[number][first:last], tuple(range(4 * number, 4 * number + 4))
        found: Piece = ours.piece(tokens, first, key=number, pages=table, adapter=adapter)
        return found

    alone = [ours.runner.compute_logits(Plan(0, (piece(i, each),)))[0] for i, each in enumerate(adapters)]
    together = ours.runner.compute_logits(Plan(0, tuple(piece(i, each) for i, each in enumerate(adapters))))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)
    chunks = [ours.runner.compute_logits(Plan(0, (piece(0, adapters[0], i, i + 5),)))[0] for i in range(0, 37, 5)]
    np.testing.assert_array_equal(np.concatenate(chunks), alone[0])
    crowd = [piece(0, adapters[0]), *(replace(piece(2, each), key=9 + i) for i, each in enumerate(adapters[1:3]))]
    np.testing.assert_array_equal(ours.runner.compute_logits(Plan(0, tuple(crowd[::-1])))[-1], alone[0])


def test_a_few_sampled_rows_have_the_bits_of_all_rows(tmp_path: Path, engine: Any, words: Words) -> None:
    """In the last layer the sampled rows alone are computed, by another way than whole layers."""
    model = tiny(tmp_path / "model", "llama3", dtype="bf16")
    config = read_config(model)
    first, second = (read_adapter(make_adapter(tmp_path / f"{seed}", model, seed=seed), config) for seed in (1, 2))
    ours = engine(model)
    pieces = [
        ours.piece(words(40, seed=1), key=1, pages=(0, 1), adapter=first),
        ours.piece(words(40, seed=2), key=2, pages=(2, 3)),
        ours.piece(words(40, seed=3), key=3, pages=(4, 5), adapter=second),
    ]
    every = ours.runner.compute_logits(Plan(0, tuple(pieces)))
    few = ours.runner.compute_logits(Plan(0, tuple(replace(each, sampled=2) for each in pieces)))
    for one, other in zip(few, every, strict=True):
        np.testing.assert_array_equal(one, other[-2:])


def test_one_native_call_for_a_layer_has_the_bits_of_single_calls(tmp_path: Path, engine: Any, words: Words) -> None:
    def product(*arguments: Any, **named: Any) -> None:
        baton_kernels.product(*arguments, **named)

    for family in ("llama3", "qwen3"):
        model = tiny(tmp_path / family, family, dtype="bf16")
        adapter = read_adapter(make_adapter(tmp_path / f"{family}-a", model), read_config(model))
        results = [
            one.runner.compute_logits(Plan(0, (one.piece(words(33), adapter=adapter),)))[0]
            for one in (engine(model), engine(model, product=product))
        ]
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("body", BODIES)
def test_every_body_has_the_same_bits(body: str, tmp_path: Path, engine: Any, words: Words) -> None:
    model = tiny(tmp_path / "model", "qwen2", dtype="bf16", ffn=200, hidden=96)
    adapter = read_adapter(make_adapter(tmp_path / "a", model, rank=7, dtype="bf16"), read_config(model))
    ours = engine(model)
    plan = Plan(0, (ours.piece(words(23), adapter=adapter),))
    (best,) = ours.runner.compute_logits(plan)
    baton_kernels.choose(body)
    try:
        (found,) = ours.runner.compute_logits(plan)
    finally:
        baton_kernels.choose(None)
    np.testing.assert_array_equal(found, best)


def test_a_draft_changes_no_token_and_is_read_without_the_adapter(tmp_path: Path, engine: Any, words: Words) -> None:
    from engine.step.plan import Drafting

    model, draft = tiny(tmp_path / "model", "llama3", dtype="bf16"), tiny(tmp_path / "d", "llama2", layers=1)
    adapter = read_adapter(make_adapter(tmp_path / "a", model), read_config(model))
    plain, drafting = engine(model), engine(model, draft=draft)
    piece = plain.piece(words(30), sampled=1, adapter=adapter)
    drafted = replace(piece, drafting=Drafting(0, propose=3))
    one, other = plain.runner.compute(Plan(0, (piece,))), drafting.runner.compute(Plan(0, (drafted,)))
    assert one.sampled == other.sampled and len(other.proposed[0]) == 3


EXPERTS = ("gate_proj", "up_proj", "down_proj")
MIXTURES = [
    ("qwen2_moe", {"mlp_only_layers": [1]}, EXPERTS),
    ("mixtral", {}, ("w1", "w3")),
    ("olmoe", {}, ("down_proj",)),
]


@pytest.mark.parametrize(("family", "fields", "targets"), MIXTURES, ids=[each[0] for each in MIXTURES])
def test_rows_of_experts_depend_on_no_other_row(
    family: str, fields: dict[str, Any], targets: tuple[str, ...], tmp_path: Path, engine: Any, words: Words
) -> None:
    """Experts are computed for rows of the base and of several adapters together: the bits are those of each alone, in
    chunks, and with a call for each kernel."""

    def product(*arguments: Any, **named: Any) -> None:
        baton_kernels.product(*arguments, **named)

    model = saved(tmp_path / "model", family, fields)
    config = read_config(model)
    folders = [
        make_adapter(tmp_path / "some", model, targets=targets, seed=1, rank=5),
        make_adapter(tmp_path / "all", model, targets=EVERY, seed=2, dtype="bf16"),
        make_adapter(tmp_path / "attention", model, targets=("q_proj", "lm_head"), seed=3),
    ]
    adapters = [*(read_adapter(folder, config, base=model) for folder in folders), None]
    ours, apart = engine(model, pool_pages=16), engine(model, pool_pages=16, product=product)
    texts = [words(count, seed=count, vocab=128) for count in (37, 20, 3, 60)]

    def piece(number: int, first: int = 0, last: int | None = None) -> Piece:
        table = tuple(range(4 * number, 4 * number + 4))
        tokens = texts[number][first:last]
        found: Piece = ours.piece(tokens, first, key=number, pages=table, adapter=adapters[number])
        return found

    alone = [ours.runner.compute_logits(Plan(0, (piece(number),)))[0] for number in range(4)]
    for one in (ours, apart):
        for number, found in enumerate(one.runner.compute_logits(Plan(0, tuple(map(piece, range(4)))))):
            np.testing.assert_array_equal(found, alone[number])
    few = ours.runner.compute_logits(Plan(0, tuple(replace(piece(number), sampled=1) for number in range(4))))
    for number, found in enumerate(few):
        np.testing.assert_array_equal(found, alone[number][-1:])
    chunks = [ours.runner.compute_logits(Plan(0, (piece(3), piece(0, at, at + 5))))[1] for at in range(0, 37, 5)]
    np.testing.assert_array_equal(np.concatenate(chunks), alone[0])
    np.testing.assert_array_equal(ours.logits(texts[3]), alone[3])
    for folder, adapter, text, found in zip(folders[:2], adapters, texts, alone, strict=False):
        merged = engine(merge(model, folder, tmp_path / f"{folder.name}-merged", scale))
        expected, base = merged.logits(text), ours.logits(text)
        assert adapter is not None and adapter.experts
        assert np.abs(found - expected).max() < 1e-4 < np.abs(base - expected).max() / 50


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "targets"), [("mixtral", ("w1", "w2", "w3")), ("olmoe", ("down_proj",))])
def test_experts_are_those_of_peft(
    family: str, targets: tuple[str, ...], tmp_path: Path, engine: Any, words: Words
) -> None:
    """peft puts the modules of such a folder into transformers' parameters of all experts."""
    model = saved(tmp_path / "model", family, {})
    folder = make_adapter(tmp_path / "adapter", model, targets=targets, lora_dropout=0.0)
    ours, text = engine(model), words(40, vocab=128)
    expected, base = theirs(folder, model, text), ours.logits(text)
    adapter = read_adapter(folder, read_config(model), base=model)
    (found,) = ours.runner.compute_logits(Plan(0, (ours.piece(text, adapter=adapter),)))
    assert np.abs(found - expected).max() < 1e-4 < np.abs(base - expected).max() / 50


@pytest.mark.parametrize("path", ["pairs", "int8", "int4"])
@pytest.mark.parametrize("body", BODIES)
def test_adapted_experts_have_the_same_bits_on_every_body(
    body: str, path: str, tmp_path: Path, engine: Any, words: Words
) -> None:
    model = tiny(tmp_path / "model", "qwen3_moe", dtype="bf16", hidden=96, ffn=128)
    adapter = read_adapter(make_adapter(tmp_path / "a", model, targets=EVERY, dtype="bf16"), read_config(model))
    ours = engine(model, product_path=path)
    rows = (ours.piece(words(23), adapter=adapter, pages=(0, 1)), ours.piece(words(9), key=2, pages=(2, 3)))
    best = ours.runner.compute_logits(Plan(0, rows))
    assert np.array_equal(best[1], ours.runner.compute_logits(Plan(0, rows[1:]))[0])
    baton_kernels.choose(body)
    try:
        found = ours.runner.compute_logits(Plan(0, rows))
    finally:
        baton_kernels.choose(None)
    np.testing.assert_array_equal(found[0], best[0])


REFUSED = {
    "the router": ("qwen2_moe", "mlp.gate", r"layers\.0\.mlp\.gate, in which no adapter is computed\. Merge"),
    "experts with one tensor for gate and up": (
        "gpt_oss",
        "mlp.experts.2.gate_up_proj",
        r"2\.gate_up_proj, in which",
    ),
    "all experts in one module": ("mixtral", "mlp.experts", r"layers\.0\.mlp\.experts, .*lacks"),
    "an expert too many": ("mixtral", "block_sparse_moe.experts.6.w1", r"experts\.6\.w1, which the model lacks"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_parts_of_a_mixture_in_which_no_adapter_is_computed_are_refused_by_module(what: str, tmp_path: Path) -> None:
    family, module, message = REFUSED[what]
    model = saved(tmp_path / "model", family, {})
    folder = make_adapter(tmp_path / "adapter", model, targets=("q_proj",))
    read_adapter(folder, read_config(model))
    file = folder / "adapter_model.safetensors"
    tensors = {name: (each.dtype, each.values) for name, each in read_file(file).items()}
    for name in "AB":
        tensors[f"{PREFIX}model.layers.0.{module}.lora_{name}.weight"] = "fp32", np.zeros((8, 8), np.float32)
    write_tensors(folder / "aside", tensors)
    (folder / "aside").rename(file)
    with pytest.raises(ModelError, match=message):
        read_adapter(folder, read_config(model))
