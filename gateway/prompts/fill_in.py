"""Prompts with a `suffix`: the model fills in what stands between two texts, where its tokenizer has tokens for that.

Step 1 of a request's life. Models learn the order of the parts: most get the text before the gap, then the text behind
it; Codestral the other way round."""

from dataclasses import dataclass

from gateway.prompts.assets import Assets
from gateway.prompts.prompt import encode_text
from mesh.errors import InvalidRequest

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FillTokens:
    """Texts of the tokens that a family of models has."""

    before: str  # in front of the text before the gap
    behind: str  # in front of the text behind it
    gap: str  # behind both; empty: nothing
    behind_first: bool = False


_FAMILIES = (
    FillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    FillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    FillTokens("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    FillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    FillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    FillTokens("[PREFIX]", "[SUFFIX]", "", behind_first=True),  # Codestral
)


def fill_tokens(assets: Assets) -> FillTokens | None:
    """The tokens of this model; None: it has none."""
    added = assets.tokenizer.added
    return next(
        (row for row in _FAMILIES if all(each in added for each in (row.before, row.behind, row.gap) if each)), None
    )


async def encode_gap(assets: Assets, before: str, behind: str) -> Ids:
    """The prompt after which the model fills in what stands between the two texts."""
    row = fill_tokens(assets)
    if row is None:
        what = f"suffix cannot be honoured: the tokenizer of {assets.name!r} has no tokens to fill in a middle"
        raise InvalidRequest("suffix", what)
    added, begins = assets.tokenizer.added, assets.tokenizer.around[0]
    first = (added[row.before], *await encode_text(assets, before, field="prompt", special=False))
    second = (added[row.behind], *await encode_text(assets, behind, field="suffix", special=False))
    gap = (added[row.gap],) if row.gap else ()
    return (*begins, *second, *first, *gap) if row.behind_first else (*begins, *first, *second, *gap)
