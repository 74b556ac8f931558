"""Every family with windows against transformers, on tiny random folders with windows shorter than the text. Chunks,
batches, pages and drafts change no bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton_kernels import KernelError, library, machine
from engine.cuda.weights import load_weights, why_not_on_gpu
from engine.families.family import Windows
from engine.families.table import FAMILIES
from engine.formats.errors import ModelError
from engine.model.config import read_config
from engine.model.weights import open_weights
from engine.selftest.run import check_draft_kernels, self_test
from engine.step.plan import Drafting, Plan
from tests.families.folders import OWN, rewritten, saved
from tests.unit.engine.test_transformers import logits_of, oracle

Fields = dict[str, Any]
Words = Callable[..., list[int]]
NEAR = 1e-4
FULL, SLIDING = "full_attention", "sliding_attention"
ON = {"use_sliding_window": True}

WINDOWED = [
    name
    for name, family in FAMILIES.items()
    if family.windows is not Windows.NONE and "use_sliding_window" not in family.refused
]
# A family, its fields, and the windows of its layers.
CASES: list[tuple[str, Fields, tuple[int, ...]]] = [
    ("mistral", {"sliding_window": 20}, (20,) * 4),
    ("mistral", {"sliding_window": 1}, (1,) * 4),
    ("mixtral", {"sliding_window": 20}, (20,) * 4),
    ("ministral", {"sliding_window": 33}, (33,) * 4),
    ("ministral", {"sliding_window": 32, "layer_types": [SLIDING, FULL, SLIDING, FULL]}, (32, 0, 32, 0)),
    ("qwen2", ON | {"sliding_window": 31, "max_window_layers": 1}, (0, 31, 31, 31)),
    ("qwen2", ON | {"sliding_window": 12, "max_window_layers": 0}, (12,) * 4),
    ("qwen3", ON | {"sliding_window": 40, "layer_types": [SLIDING, FULL, FULL, SLIDING]}, (40, 0, 0, 40)),
    ("phi3", {"sliding_window": 25}, (25,) * 4),
    ("olmo3", {"sliding_window": 24}, (24, 24, 24, 0)),
    ("gemma2", {"sliding_window": 16}, (16, 0, 16, 0)),
    ("gemma3_text", {"sliding_window": 30}, (30, 30, 30, 30, 30, 0, 30)),
    ("gemma3_text", {"sliding_window": 7, "sliding_window_pattern": 2, "layer_types": None}, (7, 0) * 3 + (7,)),
    ("starcoder2", {"sliding_window": 64}, (64,) * 4),
    ("gpt_oss", {"sliding_window": 20}, (20, 0, 20, 0)),
]


@pytest.mark.parametrize(("family", "fields", "windows"), CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers_over_several_windows(
    family: str, fields: Fields, windows: tuple[int, ...], tmp_path: Path, engine: Any, words: Words
) -> None:
    folder = saved(tmp_path / "model", family, fields)
    ours, theirs, prompt = engine(folder, product_path="fp32"), oracle(folder), words(90)
    assert ours.weights.config.windows == windows
    logits = ours.logits(prompt)
    assert np.abs(logits - logits_of(theirs, prompt)).max() <= NEAR
    assert ours.logits(prompt, chunk=7).tobytes() == logits.tobytes()
    tokens = [one.token for one in ours.generate(prompt, 130)]
    expected = logits_of(theirs, prompt + tokens)
    assert np.abs(ours.logits(prompt + tokens) - expected).max() <= NEAR
    second, best = np.sort(expected[len(prompt) - 1 : -1], axis=1)[:, -2:].T
    assert (np.array(tokens) == expected[len(prompt) - 1 : -1].argmax(1))[best - second > 2 * NEAR].all()


@pytest.mark.parametrize("family", ["mistral", "gemma2", "qwen3"])
def test_a_window_longer_by_one_token_is_another_model(family: str, tmp_path: Path, engine: Any, words: Words) -> None:
    folder = saved(tmp_path / "model", family, {"sliding_window": 20, "max_window_layers": 0} | ON)
    one, prompt = engine(folder, product_path="fp32"), words(90)
    other = engine(rewritten(folder, {"sliding_window": 21}), product_path="fp32")
    differs = np.abs(one.logits(prompt) - other.logits(prompt)).max(1) > 10 * NEAR
    assert not differs[:20].any() and differs[20:].sum() > 60
    assert one.weights.model_hash != other.weights.model_hash, "the class does not tell the two apart"


def test_every_family_with_windows_is_compared() -> None:
    assert {family for family, _, _ in CASES} == set(WINDOWED)
    assert set(OWN) == set(FAMILIES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Layers with windows and without, in bf16."""
    return saved(tmp_path / "bf16", "gemma2", {"sliding_window": 37}, dtype=torch.bfloat16)


FORMS = [
    ("fp32", "own"),
    ("pairs", "own"),
    ("amx", "own"),
    ("int8", "own"),
    ("pairs", "int8"),
    ("fp32", "fp8"),
    ("amx", "int4"),
]


@pytest.mark.parametrize(("path", "kv"), FORMS)
def test_chunks_pages_and_batches_change_no_bit(path: str, kv: str, folder: Path, engine: Any, words: Words) -> None:
    prompt, other = words(100), words(70, 1)
    whole = engine(folder, product_path=path, kv=kv).logits(prompt)
    for page_tokens, chunk in ((16, 1), (16, 7), (32, 33), (64, None)):
        again = engine(folder, product_path=path, kv=kv, page_tokens=page_tokens).logits(prompt, chunk=chunk)
        assert again.tobytes() == whole.tobytes(), (page_tokens, chunk)
    both = engine(folder, product_path=path, kv=kv)
    pieces = [both.piece(other, key=2, pages=(9, 4, 7)), both.piece(prompt, pages=(1, 8, 0, 5))]
    assert both.runner.compute_logits(Plan(0, tuple(pieces)))[1].tobytes() == whole.tobytes()
    decode = [both.piece(other[-1:], 69, key=2, pages=(9, 4, 7)), both.piece(prompt[-3:], 97, pages=(1, 8, 0, 5))]
    assert both.runner.compute_logits(Plan(1, tuple(decode)))[1].tobytes() == whole[-3:].tobytes()


@pytest.mark.parametrize(("path", "kv"), FORMS)
def test_drafts_with_windows_are_the_models_own_tokens(
    path: str, kv: str, folder: Path, engine: Any, words: Words
) -> None:
    ours, prompt = engine(folder, product_path=path, kv=kv, draft=folder), words(60)
    result = ours.runner.compute(Plan(0, (ours.piece(prompt, sampled=1, drafting=Drafting(0, (), 6)),)))
    expected = [one.token for one in engine(folder, product_path=path, kv=kv).generate(prompt, 7)]
    assert result.sampled[0][0].token == expected[0] and list(result.proposed[0]) == expected[1:]


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_the_self_test_covers_windows(family: str, tmp_path: Path, engine: Any) -> None:
    fields = {"sliding_window": 37, "num_hidden_layers": 2}
    folder = saved(tmp_path / "model", family, fields, dtype=torch.bfloat16)
    weights = engine(folder).weights
    fingerprint = self_test(weights, 32)
    assert self_test(weights, 16) == fingerprint
    check_draft_kernels(weights, 32)
    assert self_test(replace(weights, config=replace(weights.config, windows=())), 32) != fingerprint


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_a_window_that_is_wrong_in_one_body_keeps_its_worker_from_starting(
    family: str, tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {"sliding_window": 37, "num_hidden_layers": 2}
    weights = engine(saved(tmp_path / "model", family, fields, dtype=torch.bfloat16)).weights
    right = library.load().attention

    def wrong(*given: Any) -> Any:
        *before, window, scale, cap, sinks, out = given
        off = 1 if window == 37 and machine.forced() != "plain" else 0
        return right(*before, window + off, scale, cap, sinks, out)

    monkeypatch.setattr(library.load(), "attention", wrong)
    with pytest.raises(KernelError, match="self-test"):
        self_test(weights, 32)


@pytest.mark.parametrize("family", WINDOWED)
def test_a_window_that_hides_nothing_within_the_served_context_is_none(family: str, tmp_path: Path) -> None:
    fields: Fields = {"sliding_window": 64, "layer_types": None, "max_window_layers": 0}
    folder = rewritten(saved(tmp_path / "model", family, {}), fields | ON)
    weights = open_weights(folder, tmp_path / "cache", context_tokens=64)
    assert (weights.config.context, weights.config.windows) == (64, ())
    assert 64 in read_config(folder, context_tokens=65).windows


REFUSED: list[tuple[str, Fields, str, str]] = [
    ("llama", {"sliding_window": 64}, "sliding_window", "Set context_tokens to at most 64"),
    ("phi3", {"sliding_window": 64, "layer_types": [FULL, SLIDING, FULL, FULL]}, "layer_types", "no window"),
    ("qwen2", {"layer_types": [FULL, SLIDING, FULL, FULL]}, "layer_types", "no window"),
    ("qwen2", ON | {"max_window_layers": -1, "layer_types": None}, "max_window_layers", "not a whole number"),
    ("mistral", {"sliding_window": 0}, "sliding_window", "not a positive whole number"),
    ("mistral", {"sliding_window": True}, "sliding_window", "not a positive whole number"),
    ("gemma2", {"sliding_window": -4}, "sliding_window", "not a positive whole number"),
]


@pytest.mark.parametrize(("family", "fields", "field", "problem"), REFUSED)
def test_fields_of_windows_that_make_no_sense_are_refused(
    family: str, fields: Fields, field: str, problem: str, tmp_path: Path
) -> None:
    folder = rewritten(saved(tmp_path / "model", family, {}), fields)
    with pytest.raises(ModelError, match=problem) as refused:
        read_config(folder)
    assert refused.value.field == field


def test_a_gpu_refuses_windows_that_hide_a_token_by_field(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", "mistral", {"sliding_window": 64}, dtype=torch.bfloat16)
    assert why_not_on_gpu(folder) == "the GPU kernels do not compute windows that hide a token within the context"
    assert why_not_on_gpu(folder, context_tokens=64) == ""
    with pytest.raises(ModelError, match="Set context_tokens to at most 64") as refused:
        load_weights(folder, tmp_path / "cache", torch.device("cpu"))
    assert refused.value.field == "sliding_window"
