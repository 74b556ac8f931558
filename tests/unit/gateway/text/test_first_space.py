"""The space that begins a text of a tokenizer like Llama 2's: a form counts it, so an answer in a form keeps it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from gateway.core.interface import ChoiceRequest
from gateway.prompts.assets import load_assets
from gateway.text.detokenizer import Detokenizer
from gateway.text.tokenizer import ModelTokenizer
from mesh.messages.grammar import Grammars
from tests.harness.served_api import served_api
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.text.test_detokenizer import metaspace
from tests.unit.gateway.text.test_tokenizer import sentencepiece_like

RAW = sentencepiece_like()
TOKENS = ModelTokenizer(RAW)
BEGIN, END = 1, 2
BOTH = (BEGIN, END)


def follows(choice: ChoiceRequest) -> Any:
    """Ids that follow the choice's grammar as a worker reads it, always the last allowed one; else ▁aab."""
    if not choice.sampling.grammar:
        return [*map(RAW.token_to_id, ("▁a", "a", "b")), END]
    matcher, ids = Grammars(RAW.to_str).matcher(choice.sampling.grammar), list[int]()
    while not matcher.is_stopped():
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(token) for token in np.flatnonzero(bits) if token not in BOTH]
        if not allowed:
            break
        ids.append(allowed[-1])
        assert matcher.consume_token(ids[-1])
    return [*ids, END]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[openai.AsyncOpenAI]:
    (tmp_path / "tokenizer.json").write_text(RAW.to_str())
    config = {"max_position_embeddings": 512, "vocab_size": 300, "eos_token_id": END, "bos_token_id": BEGIN}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    async with served_api(FakeCore(follows), load_assets(tmp_path, "tiny")) as address:
        async with openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client:
            yield client


@pytest.mark.parametrize("form", [" a{2}b", "a{2}b", "  ab", " é{2}"])
@pytest.mark.parametrize("prompt", [[BEGIN], [BEGIN, 264]])
async def test_an_answer_satisfies_its_form_in_the_text_that_the_client_reads(
    client: openai.AsyncOpenAI, form: str, prompt: list[int]
) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": prompt, "extra_body": {"structured_outputs": {"regex": form}}}
    whole = (await client.completions.create(**asked)).choices[0].text
    assert re.fullmatch(form, whole)
    stream = await client.completions.create(**asked, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == whole


async def test_without_a_form_the_text_begins_as_in_the_tokenizers_own_decode(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=[BEGIN])
    assert answer.choices[0].text == "aab" == RAW.decode(follows_freely())
    answer = await client.completions.create(model="tiny", prompt=[BEGIN, 264])
    assert answer.choices[0].text == " aab"


def follows_freely() -> list[int]:
    return [*map(RAW.token_to_id, ("▁a", "a", "b"))]


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_a_continued_answer_in_a_form_keeps_its_space_once(cut: int) -> None:
    ids = follows_freely()
    detokenizer = Detokenizer(TOKENS, (BEGIN,), ids[:cut], keep_space=True)
    rest = "".join([*map(detokenizer.push, ids[cut:]), detokenizer.flush()])
    assert TOKENS.decode(ids[:cut], keep_space=True) + rest == " aab"


def test_other_tokenizers_that_strip_keep_the_space_too() -> None:
    tokens = ModelTokenizer(metaspace())
    ids = [2, 5]  # ▁a, a
    assert (tokens.decode(ids), tokens.decode(ids, keep_space=True)) == ("aa", " aa")
    detokenizer = Detokenizer(tokens, (), keep_space=True)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == " aa"
