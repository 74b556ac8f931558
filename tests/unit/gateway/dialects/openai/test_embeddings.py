"""Embeddings over HTTP: what clients send and get, and what is refused before anything runs."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest

from gateway.answers.window import WINDOW
from gateway.prompts.assets import Assets, load_assets
from gateway.text.pooling import embedding_settings
from mesh.messages.jobs import Pooling
from tests.unit.gateway.conftest import FakeCore


@pytest.fixture
def assets(folder: Path) -> Assets:
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": 64, "matryoshka_dimensions": [16, 32]}
    (folder / "config.json").write_text(json.dumps(config))
    return load_assets(folder, "tiny")


async def post(url: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}/v1/embeddings", json=body)


async def test_the_openai_client_gets_the_vectors_of_all_its_texts(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model="tiny", input=["Hi", "xyz"])
    assert [entry.embedding for entry in answer.data] == [[2.0, 72.0], [3.0, 120.0]]
    assert [entry.index for entry in answer.data] == [0, 1]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 5 and answer.model == "tiny"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [("Hi", [[2, 72]]), ([7, 8, 9], [[3, 7]]), ([[7], [8, 9]], [[1, 7], [2, 8]]), (["a"], [[1, 97]])],
)
async def test_every_kind_of_input_is_taken(url: str, inputs: Any, expected: Any) -> None:
    answer = (await post(url, input=inputs)).json()
    assert [entry["embedding"] for entry in answer["data"]] == expected


async def test_base64_holds_the_bytes_of_the_floats(url: str) -> None:
    answer = (await post(url, input="Hi", encoding_format="base64")).json()
    assert struct.unpack("<2f", base64.b64decode(answer["data"][0]["embedding"])) == (2.0, 72.0)


async def test_more_inputs_than_the_window_come_back_in_order(url: str, core: FakeCore) -> None:
    count = 3 * WINDOW + 1
    answer = (await post(url, input=[[index % 256] for index in range(count)])).json()
    assert [entry["embedding"][1] for entry in answer["data"]] == [float(index % 256) for index in range(count)]
    assert len(core.examinations) == count


async def test_the_examination_has_the_models_pooling_and_the_wanted_dimensions(url: str, core: FakeCore) -> None:
    assert (await post(url, input="Hi", dimensions=16, user="me")).status_code == 200
    assert (await post(url, input="Hi", dimensions=64)).status_code == 200
    first, second = (each.choice.examination for each in core.examinations)
    assert first is not None and first.pooling is Pooling.LAST and first.dimensions == 16
    assert second is not None and second.dimensions == 0, "the whole vector is not cut"


async def test_a_chat_is_embedded_as_its_template_writes_it(url: str, core: FakeCore) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert (await post(url, messages=messages)).status_code == 200
    assert (await post(url, messages=messages, add_generation_prompt=True)).status_code == 200
    assert (await post(url, messages=messages, chat_template_kwargs={"shout": True})).status_code == 200
    plain, opened, loud = (each.choice.prompt for each in core.examinations)
    assert opened[: len(plain)] == plain and len(opened) > len(plain) and loud == (*plain, ord("!"))


async def test_long_inputs_are_cut_where_the_client_wants_it(url: str, core: FakeCore) -> None:
    assert (await post(url, input="x" * 600 + "end", truncate_prompt_tokens=3)).status_code == 200
    assert (await post(url, input=["abcdef"], truncate_prompt_tokens=2, truncation_side="right")).status_code == 200
    assert (await post(url, input=[1] * 600, truncate_prompt_tokens=-1)).status_code == 200
    assert [each.choice.prompt for each in core.examinations] == [tuple(b"end"), tuple(b"ab"), (1,) * 512]


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({}, "input", "missing"),
        ({"input": "a", "messages": []}, "messages", "exclude each other"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "content"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages", "context length is 512"),
        ({"input": "a", "chat_template_kwargs": {}}, "chat_template_kwargs", "belongs to messages"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
        ({"input": []}, "input", "not empty"),
        ({"input": ""}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": ["a", 1]}, "input", "not mixed"),
        ({"input": [999]}, "input", "unknown token id"),
        ({"input": [1] * 513}, "input", "context length is 512"),
        ({"input": [[1]] * 2049}, "input", "at most 2048"),
        ({"input": "a", "dimensions": 17}, "dimensions", "16, 32, 64"),
        ({"input": "a", "dimensions": 0}, "dimensions", "16, 32, 64"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float or base64"),
        ({"input": "a", "priority": 601}, "priority", "-600 to 600"),
        ({"input": "a", "temperature": 1.0}, "temperature", "no field"),
        ({"input": "a", "model": "other"}, "model", "not served"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    url: str, core: FakeCore, fields: Any, param: str, what: str
) -> None:
    answer = await post(url, **fields)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == param and what in error["message"]
    assert core.examinations == []


def test_the_pooling_comes_from_the_models_folder() -> None:
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "word_embedding_dimension": 64}
    assert embedding_settings({"hidden_size": 64}, mean).pooling is Pooling.MEAN
    assert embedding_settings({}, {"pooling_mode_lasttoken": True}).pooling is Pooling.LAST
    assert embedding_settings({}, {}).why_not == "" and embedding_settings({}, {}).pooling is Pooling.LAST
    assert "pooling_mode_cls_token" in embedding_settings({}, {"pooling_mode_cls_token": True}).why_not
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}
    assert "pooling_mode_max_tokens" in embedding_settings({}, both).why_not
    assert embedding_settings({"is_matryoshka": True, "hidden_size": 8}, {}).any_smaller


async def test_a_model_with_another_pooling_refuses_and_names_the_file(
    url: str, assets: Assets, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = embedding_settings({}, {"pooling_mode_cls_token": True})
    object.__setattr__(assets, "embedding", settings)
    answer = await post(url, input="a")
    assert answer.status_code == 400 and "1_Pooling/config.json" in answer.json()["error"]["message"]
