"""The events of SGLang's stream repeat a token a bounded number of times, however long the answer is."""

from itertools import pairwise

import pytest

from gateway.answers.events import Delta
from gateway.dialects.described.native import SglangMeta
from gateway.dialects.native.growing import FRAMED_BYTES, FRAMES, GrowingChoice, Triples
from gateway.prompts.assets import Assets
from mesh.messages.jobs import End, Token

META = SglangMeta(id="a", finish_reason=None, prompt_tokens=1, completion_tokens=1, cached_tokens=0)


def sizes_of(assets: Assets, tokens: int, top: int | None) -> list[int]:
    """Tokens in each event of an answer."""
    choice = GrowingChoice(None if top is None else Triples(assets.tokenizer, top, texts=False))
    ids, logprobs = tuple(range(top or 0)), tuple(-0.123456789 - i for i in range(top or 0))
    found = list[int]()
    for position in range(tokens):
        token = Token(position, 97, -0.5, ids, logprobs, End.NONE)
        choice.add(Delta(0, (token,), "a", "", (), "", ()))
        if choice.is_due():
            found.append(choice.tokens)
    return found


def bytes_of(assets: Assets, top: int | None) -> float:
    """Bytes of a token."""
    choice = GrowingChoice(None if top is None else Triples(assets.tokenizer, top, texts=False))
    count, empty = 50, sum(map(len, choice.members(META)))
    ids, logprobs = tuple(range(top or 0)), tuple(-0.123456789 - i for i in range(top or 0))
    for position in range(count):
        choice.add(Delta(0, (Token(position, 97, -0.5, ids, logprobs, End.NONE),), "a", "", (), "", ()))
    return (sum(map(len, choice.members(META))) - empty) / count


@pytest.mark.parametrize("top", [None, 0, 5, 20, 100])
def test_the_cost_of_a_token_is_bounded(assets: Assets, top: int | None) -> None:
    tokens = 600
    sizes = sizes_of(assets, tokens, top)
    each = bytes_of(assets, top)
    assert sum(sizes) * each / tokens < max(1.3 * FRAMED_BYTES, 10 * each)
    assert sizes[:5] == [1, 2, 3, 4, 5], "an answer begins token by token"
    assert all(after - before <= 1 + after // 8 for before, after in pairwise(sizes))


def test_without_long_lists_every_token_of_the_beginning_has_its_event(assets: Assets) -> None:
    for top in (None, 0):
        assert sizes_of(assets, 300, top)[: FRAMES - 1] == list(range(1, FRAMES))
