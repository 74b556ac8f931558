"""Completions with a suffix: the prompt that each family of models has learned."""

from pathlib import Path

import pytest
from tokenizers import AddedToken

from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.fill_in import encode_gap
from mesh.errors import InvalidRequest
from tests.unit.gateway.byte_model import byte_tokenizer


def with_tokens(folder: Path, *names: str) -> Assets:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    config = (folder / "config.json").read_text().replace("261", "300")
    (folder / "config.json").write_text(config)
    return load_assets(folder, "tiny")


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), (261, 97, 262, 98, 99, 263)),
        (("<fim_prefix>", "<fim_middle>", "<fim_suffix>"), (261, 97, 263, 98, 99, 262)),
        (("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"), (261, 97, 262, 98, 99, 263)),
        (("[PREFIX]", "[SUFFIX]"), (262, 98, 99, 261, 97)),
    ],
)
async def test_each_family_gets_the_order_that_it_has_learned(
    folder: Path, names: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    assert await encode_gap(with_tokens(folder, *names), "a", "bc") == expected


async def test_a_text_of_a_client_stands_where_it_was_written(folder: Path) -> None:
    assets = with_tokens(folder, "<fim_prefix>", "<fim_middle>", "<fim_suffix>")
    assert await encode_gap(assets, "", "b") == (261, 263, 98, 262)


async def test_a_model_without_these_tokens_says_so(assets: Assets) -> None:
    with pytest.raises(InvalidRequest, match="no tokens to fill in a middle"):
        await encode_gap(assets, "a", "b")
