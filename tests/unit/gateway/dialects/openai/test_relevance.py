"""`/v1/rerank` and `/v1/score`: the share of yes among yes and no, in the words that rerankers have learned."""

import math
from typing import Any

import httpx2 as httpx
import pytest

from gateway.answers import relevance
from gateway.answers.window import WINDOW
from tests.unit.gateway.conftest import FakeCore

YES, NO = ord("y"), ord("n")
AWAY = 1 / (1 + math.exp(-0.5 + 11.5))  # `n` came, and `y` is eleven places behind it among the listed ones


@pytest.fixture(autouse=True)
def single_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words that are one token of the byte tokenizer."""
    monkeypatch.setattr(relevance, "YES", "y")
    monkeypatch.setattr(relevance, "NO", "n")


async def post(url: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}{path}", json=body)


def text_of(core: FakeCore, number: int) -> str:
    return bytes(token for token in core.streams[number].choice.prompt if token < 256).decode()


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_come_back_in_the_order_of_their_scores(url: str, core: FakeCore, path: str) -> None:
    core.reply = lambda choice: b"y" if b"good" in bytes(token for token in choice.prompt if token < 256) else b"n"
    documents = ["bad", {"text": "good"}, "worse"]
    answer = (await post(url, path, query="what", documents=documents)).json()
    assert [each["index"] for each in answer["results"]] == [1, 0, 2]
    assert [each["document"] for each in answer["results"]] == [{"text": each} for each in ("good", "bad", "worse")]
    assert answer["results"][0]["relevance_score"] > 0.99
    assert answer["results"][1]["relevance_score"] == pytest.approx(AWAY) == answer["results"][2]["relevance_score"]
    prompts = [len(stream.choice.prompt) for stream in core.streams]
    assert answer["usage"]["prompt_tokens"] == sum(prompts) and answer["usage"]["prompt_tokens_details"]
    assert all(stream.choice.sampling.max_tokens == 1 for stream in core.streams)


async def test_a_logprob_that_is_not_listed_is_examined(url: str, core: FakeCore) -> None:
    core.reply = b"y"  # the fake core lists the twenty ids from the token on: `n` is not among them
    answer = (await post(url, "/v1/score", text_1="what", text_2="this")).json()
    (examined,) = core.examinations
    assert examined.choice.prompt == (*core.streams[0].choice.prompt, NO)
    no = -float(len(examined.choice.prompt) - 1)  # what the fake core says of a prompt's last token
    assert answer["data"][0]["score"] == pytest.approx(1 / (1 + math.exp(no + 0.5)))


async def test_the_prompt_has_the_words_of_rerankers(url: str, core: FakeCore) -> None:
    await post(url, "/v1/rerank", query="Q?", documents=["D."], instruction="I!", top_n=1, return_documents=False)
    text = text_of(core, 0)
    assert 'the answer can only be "yes" or "no"' in text
    assert "<Instruct>: I!\n<Query>: Q?\n<Document>: D." in text


async def test_scores_are_those_of_pairs(url: str, core: FakeCore) -> None:
    core.reply = b"n"
    one = (await post(url, "/score", text_1="a", text_2=["b", "c"])).json()
    assert [each["index"] for each in one["data"]] == [0, 1] and one["object"] == "list"
    assert all(each["score"] == pytest.approx(AWAY) for each in one["data"])
    await post(url, "/v1/score", text_1=["a", "b"], text_2=["c", "d"])
    assert "<Query>: b\n<Document>: d" in text_of(core, 3)


async def test_many_documents_are_ranked_in_windows(url: str, core: FakeCore) -> None:
    core.reply = b"n"
    count = 2 * WINDOW + 3
    answer = (await post(url, "/v1/rerank", query="q", documents=["d"] * count, top_n=2)).json()
    assert [each["index"] for each in answer["results"]] == [0, 1] and len(core.streams) == count


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": [{"image": "x"}]}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"query": "a", "documents": ["a"] * 2049}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["x" * 600]}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "model": "other"}, "model"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/score", {"text_2": "a"}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(
    url: str, core: FakeCore, path: str, fields: Any, param: str
) -> None:
    answer = await post(url, path, **fields)
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    assert answer.json()["error"]["param"] == param and core.streams == []


async def test_a_model_without_single_tokens_for_the_words_says_so(
    url: str, core: FakeCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relevance, "YES", "yes")
    answer = await post(url, "/v1/rerank", query="q", documents=["d"])
    assert answer.status_code == 400 and "single tokens" in answer.json()["error"]["message"]
