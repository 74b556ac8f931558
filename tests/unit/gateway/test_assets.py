"""The gateway reads limits, ids and templates from a model's folder, and names the file that is missing or broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.text.assets import AssetError, Defaults, load_assets


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
    ],
)
def test_the_folder_decides_how_to_sample_where_a_request_does_not(
    folder: Path, given: dict[str, Any], defaults: Defaults
) -> None:
    change(folder / "generation_config.json", **given)
    assert load_assets(folder, "tiny").defaults == defaults


@pytest.mark.parametrize(("name", "value"), [("temperature", "hot"), ("top_p", 0), ("top_k", -2), ("min_p", True)])
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
