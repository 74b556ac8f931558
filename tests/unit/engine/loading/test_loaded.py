"""A model loaded with a draft: what its pages hold, and drafts that do not fit the model."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.builtin import tiny
from engine.cuda.device import Found
from engine.formats.errors import ModelError
from engine.loading.loaded import CpuModel, load_model, load_on
from engine.model.drafts import check_draft
from mesh.messages.page_shape_checks import shape_problem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny(tmp_path / "model", "llama2", dtype="bf16", layers=3)


def opened(folder: Path, tmp_path: Path, draft: Path | None = None, **more: Any) -> CpuModel:
    options: dict[str, Any] = {"product_path": "auto", "page_tokens": 32} | more
    return load_model(folder, tmp_path / "cache", draft=draft, **options)


def test_a_page_holds_the_models_layers_and_behind_them_the_drafts(folder: Path, tmp_path: Path) -> None:
    draft = tiny(tmp_path / "draft", "qwen3", dtype="bf16")
    model, plain = opened(folder, tmp_path, draft), opened(folder, tmp_path)
    (first,), (again, behind) = plain.shape.segments, model.shape.segments
    assert again == first and (behind.layers, behind.layer_bytes) == (2, 2 * 2 * 32 * 32 * 2)
    assert model.shape.page_bytes == plain.shape.page_bytes + 2 * 8192 and shape_problem(model.shape) == ""
    runner = model.runner(bytearray(4 * model.shape.page_bytes), threads=1)
    assert (runner.layers, runner.shape) == (5, model.shape)
    runner.close()


def test_a_draft_changes_the_pages_but_not_the_numerics_class(folder: Path, tmp_path: Path) -> None:
    drafts = [tiny(tmp_path / f"draft{seed}", "llama2", dtype="bf16", seed=seed) for seed in (1, 2)]
    models = [opened(folder, tmp_path), *(opened(folder, tmp_path, draft) for draft in drafts)]
    assert len({model.shape for model in models}) == 3 and len({model.identity for model in models}) == 1


def test_a_draft_in_fp32_serves_a_model_in_fp32(tmp_path: Path) -> None:
    model, draft = tiny(tmp_path / "model", "llama2"), tiny(tmp_path / "draft", "llama2", dtype="bf16")
    made = opened(model, tmp_path, draft, product_path="fp32")
    assert made.draft is not None and made.weights.path == "fp32"


def test_a_draft_that_lacks_tokens_is_refused_naming_the_setting(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"draft: .*vocabulary of 200.*Set `draft`"):
        opened(folder, tmp_path, tiny(tmp_path / "draft", "llama2", dtype="bf16", vocab=200))


@pytest.mark.parametrize("change", [{"vocab": 288}, {"context": 256}])
def test_a_draft_with_other_padding_or_a_shorter_context_is_served_on_a_cpu(
    change: dict[str, int], folder: Path, tmp_path: Path
) -> None:
    draft = tiny(tmp_path / "draft", "llama2", dtype="bf16", **change)
    model = opened(folder, tmp_path, draft)
    assert model.draft_context_tokens == change.get("context", 512) and model.context_tokens == 512
    with pytest.raises(ModelError, match=r"draft: has a (vocabulary of 288|context of 256).*Set `draft`"):
        check_draft(draft, model.weights.config, folder, padded=False)  # as a GPU does


def test_other_padding_needs_a_tokenizer_that_says_what_is_padding(folder: Path, tmp_path: Path) -> None:
    draft = tiny(tmp_path / "draft", "llama2", dtype="bf16", vocab=288)
    for place in (draft, folder):
        (place / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="vocabulary of 288"):
        opened(folder, tmp_path, draft)


def test_weights_and_their_draft_count_as_memory(folder: Path, tmp_path: Path) -> None:
    draft = tiny(tmp_path / "draft", "llama2", dtype="bf16")
    alone, both = opened(folder, tmp_path), opened(folder, tmp_path, draft)
    files = [file.stat().st_size for file in (tmp_path / "cache").glob("*.weights")]
    assert both.draft is not None
    assert both.weights_bytes == alone.weights_bytes + both.draft.nbytes
    assert 0.5 * sum(files) < both.weights_bytes <= sum(files)


def test_a_draft_with_other_words_is_refused(folder: Path, tmp_path: Path) -> None:
    draft = tiny(tmp_path / "draft", "llama2", dtype="bf16")
    file = draft / "tokenizer.json"
    raw = json.loads(file.read_text())
    words = raw["model"]["vocab"]
    first, second = list(words)[:2]
    words[first], words[second] = words[second], words[first]
    file.write_text(json.dumps(raw))
    with pytest.raises(ModelError, match="another tokenizer"):
        opened(folder, tmp_path, draft)


def test_a_draft_that_is_no_model_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        opened(folder, tmp_path, tmp_path / "nothing")


def test_a_gpu_that_is_not_there_is_refused_by_the_settings_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.loading.loaded.find_gpu", lambda: Found(None, "no NVIDIA driver"))
    with pytest.raises(ModelError, match=r'device.*no NVIDIA driver.*Set device = "cpu"'):
        load_on("cuda", folder, tmp_path / "cache", product_path="auto", page_tokens=16)
