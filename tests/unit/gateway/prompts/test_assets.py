"""The gateway reads limits, ids and templates from a model's folder, and names the file that is missing or broken."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gateway.prompts.assets import AssetError, Defaults, load_assets
from mesh.config.config_checks import ConfigError


def change(file: Path, **fields: Any) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({k: v for k, v in (content | fields).items() if v is not None}))


def test_limits_and_ids_come_from_the_folder(folder: Path) -> None:
    change(folder / "generation_config.json", eos_token_id=[5, 6])
    assets = load_assets(folder, "tiny")
    assert (assets.context_tokens, assets.vocabulary, assets.eos_ids) == (512, 261, (5, 6, 257))
    assert assets.tokenizer.encode("hi", special=True) == (104, 105)


@pytest.mark.parametrize(
    ("given", "defaults"),
    [
        ({}, Defaults()),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 20}, Defaults(temperature=0.6, top_p=0.9, top_k=20)),
        ({"do_sample": True, "temperature": 0.6}, Defaults(temperature=0.6)),
        ({"do_sample": False, "temperature": 0.6}, Defaults(temperature=0.0)),
        ({"top_k": -1}, Defaults(top_k=0)),
        ({"repetition_penalty": 1.1, "top_k": 20.0}, Defaults(repetition_penalty=1.1, top_k=20)),
        ({"no_repeat_ngram_size": 3, "min_new_tokens": 4}, Defaults(no_repeat_ngram_size=3, min_new_tokens=4)),
        ({"suppress_tokens": [3, 1]}, Defaults(suppress_tokens=(3, 1))),
        ({"num_beams": 1, "typical_p": 1.0, "guidance_scale": None, "bad_words_ids": []}, Defaults()),
        ({"max_length": 20, "use_cache": False, "cache_implementation": "static", "pad_token_id": 3}, Defaults()),
    ],
)
def test_the_folder_decides_how_to_sample_where_a_request_does_not(
    folder: Path, given: dict[str, Any], defaults: Defaults
) -> None:
    change(folder / "generation_config.json", **given)
    assert load_assets(folder, "tiny").defaults == defaults


UNSUPPORTED: list[tuple[str, Any]] = [
    ("repetition_penalty", 0.0),
    ("no_repeat_ngram_size", 2.5),
    ("suppress_tokens", [1, 99999]),
    ("suppress_tokens", 7),
    ("min_new_tokens", -1),
    ("num_beams", 4),
    ("typical_p", 0.9),
    ("penalty_alpha", 0.6),
    ("bad_words_ids", [[1, 2]]),
    ("forced_eos_token_id", 2),
    ("guidance_scale", 1.5),
    ("sequence_bias", [[[1], 2.0]]),
    ("stop_strings", ["end"]),
    ("watermarking_config", {"bias": 2.0}),
]


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", "hot"), ("top_p", 0), ("top_k", -2), ("min_p", True), *UNSUPPORTED]
)
def test_a_wrong_recommendation_is_named(folder: Path, name: str, value: Any) -> None:
    change(folder / "generation_config.json", **{name: value})
    with pytest.raises(AssetError, match=rf"generation_config\.json: {name} is "):
        load_assets(folder, "tiny")


def test_the_text_model_of_a_nested_config_counts(folder: Path) -> None:
    change(
        folder / "config.json",
        max_position_embeddings=None,
        vocab_size=None,
        text_config={"max_position_embeddings": 64, "vocab_size": 261},
    )
    assert load_assets(folder, "tiny").context_tokens == 64


def test_a_template_file_comes_before_the_tokenizers_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file {{ bos_token }}")
    template = load_assets(folder, "tiny").template
    assert template is not None
    assert template.render([]) == "from the file <|begin|>"


def test_of_several_templates_the_default_is_taken(folder: Path) -> None:
    both = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    change(folder / "tokenizer_config.json", chat_template=both, bos_token={"content": "<b>", "lstrip": False})
    template = load_assets(folder, "tiny").template
    assert template is not None
    assert template.render([]) == "yes"


def test_a_model_without_a_template_is_served_without_chat(folder: Path) -> None:
    (folder / "tokenizer_config.json").unlink()
    assets = load_assets(folder, "tiny")
    assert assets.template is None
    assert assets.eos_ids == (257,)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[]", "config.json holds no JSON object"),
        ("config.json", '{"vocab_size": 5}', "needs max_position_embeddings"),
        ("config.json", '{"max_position_embeddings": 5, "vocab_size": "x"}', "needs vocab_size"),
        ("tokenizer.json", None, "tokenizer.json is missing"),
        ("tokenizer.json", "{}", "tokenizer.json is no tokenizer"),
        ("chat_template.jinja", "{% for %}", "chat_template.jinja is broken"),
    ],
)
def test_a_broken_folder_is_an_error_that_names_the_file(
    folder: Path, file: str, content: str | None, message: str
) -> None:
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(AssetError, match=message):
        load_assets(folder, "tiny")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "generation_config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tokenizer.json",
        "additional_chat_templates/rag.jinja",
    ],
)
def test_a_pipe_under_a_files_name_is_an_error_and_holds_nobody_up(folder: Path, name: str) -> None:
    load_assets(folder, "tiny")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ConfigError, match=rf"{name}.*(no regular file|missing)"):
        load_assets(folder, "tiny")


def test_a_shorter_context_may_be_set_and_no_longer_one(folder: Path) -> None:
    assert load_assets(folder, "tiny", context_tokens=100).context_tokens == 100
    with pytest.raises(AssetError, match="context_tokens: 513 is more than the 512 tokens"):
        load_assets(folder, "tiny", context_tokens=513)
