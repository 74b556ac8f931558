"""Logprobs of prompts over HTTP: vLLM's field, completions that echo, and requests that only score."""

import json
import threading
from typing import Any

import httpx2 as httpx
import openai
import pytest

from gateway.core.interface import PromptScores
from gateway.dialects.common.pieces import JsonPieces, encode_pieces, in_thread
from gateway.dialects.openai.answer import CompletionScores
from gateway.dialects.openai.prompt_logprobs import SLICE, echoed_slices, prompt_logprobs
from gateway.prompts.assets import Assets
from tests.unit.gateway.conftest import FakeCore, FakeExamination


async def post(url: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=None) as client:
        return await client.post(f"{url}/v1/completions", json=body)


async def test_prompt_logprobs_list_every_token_but_the_first(url: str, core: FakeCore) -> None:
    answer = (await post(url, prompt=[72, 105, 1], prompt_logprobs=2, max_tokens=2)).json()
    (choice,) = answer["choices"]
    likeliest = {
        "0": {"logprob": -0.25, "rank": 1, "decoded_token": "\x00"},
        "1": {"logprob": -1.25, "rank": 2, "decoded_token": "\x01"},
    }
    own = {"105": {"logprob": -1.0, "rank": 7, "decoded_token": "i"}}
    assert choice["prompt_logprobs"] == [None, own | likeliest, likeliest]
    assert choice["text"] == "he" and choice["logprobs"] is None
    (examination,) = core.examinations
    assert examination.choice.examination is not None and examination.choice.examination.top == 2
    assert core.streams[0].choice.numerics == examination.numerics, "the answer goes on in the class of its scores"


async def test_an_echo_with_logprobs_begins_with_the_prompts(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt=[72, 105], echo=True, logprobs=1, max_tokens=2)
    choice = answer.choices[0]
    assert choice.text == "Hihe" and choice.logprobs is not None
    assert choice.logprobs.tokens == ["H", "i", "h", "e"]
    assert choice.logprobs.token_logprobs == [None, -1.0, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]
    assert choice.logprobs.top_logprobs == [None, {"i": -1.0, "\x00": -0.25}, {"h": -0.5}, {"e": -0.5}]


async def test_without_tokens_only_the_prompt_is_scored(url: str, core: FakeCore) -> None:
    body = {"prompt": [[72, 105], [105, 72, 72]], "echo": True, "logprobs": 0, "max_tokens": 0}
    answer = (await post(url, **body)).json()
    assert [choice["text"] for choice in answer["choices"]] == ["Hi", "iHH"]
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["choices"][1]["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [None, -1.0, -2.0],
        "tokens": ["i", "H", "H"],
        "top_logprobs": [None, None, None],
    }
    assert answer["usage"]["prompt_tokens"] == 5 and answer["usage"]["completion_tokens"] == 0
    assert answer["system_fingerprint"] == "f00d"
    assert core.streams == [] and len(core.examinations) == 2
    assert core.admitted_as_examined, "a full decode tier does not keep it out"
    await post(url, prompt="Hi", max_tokens=1)
    assert not core.admitted_as_examined


async def test_streams_carry_the_echoed_logprobs_in_their_first_frame(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model="tiny", prompt=[72, 105], echo=True, logprobs=1, max_tokens=1, stream=True
    )
    frames = [chunk.choices[0] async for chunk in stream]
    assert [frame.text for frame in frames] == ["Hi", "h", ""]
    assert [frame.logprobs and frame.logprobs.token_logprobs for frame in frames] == [[None, -1.0], [-0.5], None]
    assert [frame.logprobs and frame.logprobs.text_offset for frame in frames] == [[0, 1], [2], None]


async def test_a_chat_has_the_prompts_logprobs_beside_its_choices(url: str) -> None:
    async with httpx.AsyncClient(timeout=None) as client:
        body = {"messages": [{"role": "user", "content": "Hi"}], "prompt_logprobs": 0, "max_tokens": 1}
        answer = (await client.post(f"{url}/v1/chat/completions", json=body)).json()
    assert answer["prompt_logprobs"][0] is None
    assert [list(entry) for entry in answer["prompt_logprobs"][1:3]] == [["72"], ["105"]]


@pytest.mark.parametrize(
    ("fields", "field", "what"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs", "0 to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "0 to 20"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "stream=true"),
        ({"echo": True, "logprobs": 21}, "logprobs", "0 to 20"),
        ({"max_tokens": -1}, "max_tokens", "at least 0"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_name(url: str, fields: Any, field: str, what: str) -> None:
    answer = await post(url, prompt="Hi", **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field and what in answer.json()["error"]["message"]


async def test_a_prompt_as_long_as_the_context_can_be_scored_but_not_continued(url: str) -> None:
    whole = [65] * 512
    assert (await post(url, prompt=whole, echo=True, logprobs=1, max_tokens=0)).status_code == 200
    assert (await post(url, prompt=whole, echo=True, logprobs=1, max_tokens=1)).status_code == 400
    assert (await post(url, prompt=[*whole, 65], echo=True, logprobs=1, max_tokens=0)).status_code == 400


async def test_lists_that_would_fill_the_memory_are_refused_before_anything_runs(url: str, core: FakeCore) -> None:
    body: dict[str, Any] = {"prompt": [[65] * 500] * 256, "max_tokens": 0}
    for fields, field in (({"echo": True, "logprobs": 20}, "echo"), ({"prompt_logprobs": 20}, "prompt_logprobs")):
        answer = await post(url, **body, **fields)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == field
        assert "2097152 logprobs" in answer.json()["error"]["message"] and core.examinations == []
    assert (await post(url, **body, prompt_logprobs=0)).status_code == 200


async def scores_of(prompt: tuple[int, ...], top: int) -> PromptScores:
    from gateway.core.interface import ChoiceRequest
    from mesh.messages.jobs import Sampling
    from mesh.messages.orders import Examination

    choice = ChoiceRequest("r", "tiny", prompt, (), Sampling(), examination=Examination(top))
    return await FakeExamination(choice).scores()


async def test_slices_are_joined_without_a_seam(assets: Assets) -> None:
    """Lengths around the size of a slice give whole lists, also where characters span tokens."""
    for length in (1, 2, SLICE, SLICE + 1, SLICE + 2, 2 * SLICE + 1):
        prompt = tuple("é€x".encode() * length)[:length]
        scores = await scores_of(prompt, 1)
        items = list(prompt_logprobs(assets.tokenizer, scores, 1))
        listed = json.loads(b"".join(encode_pieces(JsonPieces.of_items(items))))
        assert len(listed) == length and listed[0] is None
        echoed = list(echoed_slices(assets.tokenizer, scores, 1, skip_special=True))
        members = CompletionScores(assets.tokenizer).whole(0, [each.items for each in echoed])
        joined = json.loads(b"".join(encode_pieces(members)))
        assert {len(column) for column in joined.values()} == {length}
        text = "".join(each.text for each in echoed)
        assert text == assets.tokenizer.decode(prompt)
        assert joined["token_logprobs"][1:] == [-float(i) for i in range(1, length)]
        assert joined["text_offset"] == sorted(joined["text_offset"])
        assert 0 <= joined["text_offset"][-1] <= len(text)


def test_pieces_stand_where_their_value_stands() -> None:
    pieces = JsonPieces.of_items([b"1,2", b"3"])
    value = {"a": pieces, "b": [pieces, "text"], "c": JsonPieces.of_items([])}
    assert json.loads(b"".join(encode_pieces(value))) == {"a": [1, 2, 3], "b": [[1, 2, 3], "text"], "c": []}
    assert encode_pieces({"a": 1}) == [b'{"a":1}']
    with pytest.raises(TypeError, match="object is no JSON value"):
        encode_pieces({"a": object()})


async def test_slices_are_made_in_a_thread() -> None:
    threads = (threading.get_ident() for _ in range(3))
    found = [ident async for ident in in_thread(threads)]
    assert len(found) == 3 and threading.get_ident() not in found
