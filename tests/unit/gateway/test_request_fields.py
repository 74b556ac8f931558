"""Fields of OpenAI bodies besides sampling: token ids, usage while streaming, cut prompts, best choices, routing."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

HI: Any = [{"role": "user", "content": "hi"}]


async def frames_of(url: str, path: str, **body: Any) -> list[Any]:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        text = (await client.post(path, json=body | {"stream": True})).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def whole_of(url: str, path: str, **body: Any) -> Any:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"max_completion_tokens": 0}, {"max_tokens": 0, "n": 2}])
async def test_no_tokens_at_all_are_an_answer_without_a_step(url: str, core: Any, fields: Any) -> None:
    answer = await whole_of(url, "/v1/completions", prompt="ab", **fields, echo=True)
    assert [(c["text"], c["finish_reason"]) for c in answer["choices"]] == [("ab", "length")] * fields.get("n", 1)
    assert answer["usage"]["completion_tokens"] == 0 and core.streams == []
    frames = await frames_of(url, "/v1/chat/completions", messages=HI, **fields)
    assert frames[-1]["choices"][0]["finish_reason"] == "length" and core.streams == []


async def test_max_completion_tokens_win_on_both_endpoints(url: str, core: Any) -> None:
    await whole_of(url, "/v1/completions", prompt="x", max_tokens=9, max_completion_tokens=4)
    await whole_of(url, "/v1/chat/completions", messages=HI, max_tokens=9, max_completion_tokens=4)
    assert [stream.choice.sampling.max_tokens for stream in core.streams] == [4, 4]


async def test_continuous_usage_comes_with_every_frame(url: str, core: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (("/v1/completions", {"prompt": "ab"}), ("/v1/chat/completions", {"messages": HI})):
        frames = await frames_of(url, path, **body, max_tokens=3, stream_options=options)
        counts = [frame["usage"]["completion_tokens"] for frame in frames]
        assert counts == sorted(counts) and counts[-1] == 3 and counts[-2:] == [3, 3]
        assert all(frame["usage"]["total_tokens"] > frame["usage"]["completion_tokens"] for frame in frames)
        assert frames[-1]["choices"] == []
        plain = await frames_of(url, path, **body, max_tokens=3, stream_options={"include_usage": True})
        assert [frame for frame in plain if "usage" in frame] == plain[-1:]  # negative control


async def test_token_ids_come_along_on_request(url: str, core: Any) -> None:
    core.reply = "é!".encode()
    ids = [*core.reply, 257]
    whole = await whole_of(url, "/v1/chat/completions", messages=HI, return_token_ids=True)
    assert whole["choices"][0]["token_ids"] == ids and whole["prompt_token_ids"][:2] == [258, 104]
    frames = await frames_of(url, "/v1/chat/completions", messages=HI, return_token_ids=True)
    assert frames[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [id for frame in frames for c in frame["choices"] for id in c.get("token_ids", ())] == ids
    whole = await whole_of(url, "/v1/completions", prompt=["ab", "c"], return_token_ids=True)
    assert [c["prompt_token_ids"] for c in whole["choices"]] == [[97, 98], [99]]
    assert [c["token_ids"] for c in whole["choices"]] == [ids, ids]
    frames = await frames_of(url, "/v1/completions", prompt=["ab", "c"], return_token_ids=True)
    firsts = {c["index"]: c["prompt_token_ids"] for f in frames for c in f["choices"] if "prompt_token_ids" in c}
    assert firsts == {0: [97, 98], 1: [99]}
    assert "token_ids" not in (await whole_of(url, "/v1/completions", prompt="a"))["choices"][0]


async def test_logprobs_may_name_tokens_by_their_ids(url: str, core: Any) -> None:
    fields = {"logprobs": 1, "max_tokens": 2, "return_tokens_as_token_ids": True}
    logprobs = (await whole_of(url, "/v1/completions", prompt="x", **fields))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["token_id:104", "token_id:101"] and logprobs["text_offset"] == [0, 1]
    assert list(logprobs["top_logprobs"][0]) == ["token_id:104"]
    fields = {"logprobs": True, "top_logprobs": 1, "max_tokens": 1, "return_tokens_as_token_ids": True}
    chat = (await whole_of(url, "/v1/chat/completions", messages=HI, **fields))["choices"][0]["logprobs"]["content"]
    assert chat[0]["token"] == chat[0]["top_logprobs"][0]["token"] == "token_id:104"


async def test_named_tokens_are_listed_in_place_of_the_likeliest(url: str, core: Any) -> None:
    named = {"logprob_token_ids": [104, 7], "return_tokens_as_token_ids": True, "max_tokens": 2}
    whole = await whole_of(url, "/v1/chat/completions", messages=HI, logprobs=True, top_logprobs=3, **named)
    for token in whole["choices"][0]["logprobs"]["content"]:
        listed = [(top["token"], top["logprob"]) for top in token["top_logprobs"]]
        assert listed == [("token_id:104", -0.5), ("token_id:7", -1.5)]
    whole = await whole_of(url, "/v1/completions", prompt="x", logprobs=0, **named)
    first, second = whole["choices"][0]["logprobs"]["top_logprobs"]
    assert list(first) == ["token_id:104", "token_id:7"]
    assert list(second) == ["token_id:101", "token_id:104", "token_id:7"]  # the token itself comes first
    assert {stream.choice.sampling.logprob_ids for stream in core.streams} == {(104, 7)}
    plain = await whole_of(url, "/v1/completions", prompt="x", logprobs=0, max_tokens=2)
    assert plain["choices"][0]["logprobs"]["top_logprobs"] == [None, None]  # negative control


async def test_workers_that_look_up_no_logits_refuse_named_tokens(url: str, core: Any) -> None:
    core.adjusts_logits = False
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        body = {"prompt": "x", "logprobs": 0, "max_tokens": 1}
        refused = await client.post("/v1/completions", json=body | {"logprob_token_ids": [7]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprob_token_ids")
        assert (await client.post("/v1/completions", json=body)).status_code == 200  # negative control


async def test_text_offsets_are_the_same_in_streams_and_whole_answers(url: str, core: Any) -> None:
    core.reply = "né <x> STOP".encode()
    fields = {"prompt": "ab", "logprobs": 0, "stop": ["STOP"]}
    whole = (await whole_of(url, "/v1/completions", **fields))["choices"][0]
    frames = await frames_of(url, "/v1/completions", **fields)
    choices = [choice for frame in frames for choice in frame["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"] == "né <x> "
    parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    assert [offset for part in parts for offset in part["text_offset"]] == whole["logprobs"]["text_offset"]
    # n, two bytes of é, a space, <, x, >, a space, and the four tokens of the stop string
    assert whole["logprobs"]["text_offset"] == [0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


async def test_the_best_choices_are_those_with_the_highest_mean_logprob(url: str, core: Any, monkeypatch: Any) -> None:
    script = core._script

    def scored(choice: Any) -> Any:
        logprob = (-3.0, -0.5, -2.0, -1.0)[choice.sampling.choice]
        return [replace(token, logprob=logprob) for token in script(choice)]

    monkeypatch.setattr(core, "_script", scored)
    core.reply = lambda choice: b"choice %d" % choice.sampling.choice
    answer = await whole_of(url, "/v1/completions", prompt=["x", "y"], best_of=4, n=2)
    assert [(c["index"], c["text"][-1]) for c in answer["choices"]] == [(0, "1"), (1, "3"), (2, "1"), (3, "3")]
    assert answer["usage"]["completion_tokens"] == 8 * 9  # tokens of all choices
    answer = await whole_of(url, "/v1/chat/completions", messages=HI, best_of=3)
    assert [(c["index"], c["message"]["content"]) for c in answer["choices"]] == [(0, "choice 1")]
    assert len(await frames_of(url, "/v1/completions", prompt="x", best_of=2, n=2)) > 2  # n of n


async def test_long_prompts_are_cut_where_the_client_says(url: str, core: Any) -> None:
    async def prompt_of(prompt: Any, **fields: Any) -> bytes:
        await whole_of(url, "/v1/completions", prompt=prompt, **fields)
        return bytes(core.streams[-1].choice.prompt)

    for given in ("abcdef", list(b"abcdef")):
        assert await prompt_of(given, truncate_prompt_tokens=2) == b"ef"
        assert await prompt_of(given, truncate_prompt_tokens=2, truncation_side="right") == b"ab"
        assert await prompt_of(given, truncate_prompt_tokens=9) == b"abcdef"
    text = "x" * 700 + "y"
    for given in (text, list(text.encode())):
        assert await prompt_of(given, truncate_prompt_tokens=-1, max_tokens=12) == b"x" * 499 + b"y"
    await whole_of(url, "/v1/chat/completions", messages=HI, truncate_prompt_tokens=3)
    assert len(core.streams[-1].choice.prompt) == 3
    core.context_tokens = 100
    assert len(await prompt_of(text, truncate_prompt_tokens=-1, max_tokens=12)) == 88, (
        "workers hold less than the model"
    )


async def test_routing_keys_reach_the_core_and_others_are_taken_silently(url: str, core: Any) -> None:
    for fields, key in (({"prompt_cache_key": "a", "session_id": "b"}, "a"), ({"session_id": "b"}, "b"), ({}, "")):
        await whole_of(url, "/v1/completions", prompt="x", kv_transfer_params={"remote": 1}, **fields)
        assert core.streams[-1].choice.affinity == key


async def test_reasoning_tokens_are_counted_as_none(client: openai.AsyncOpenAI) -> None:
    usage = (await client.chat.completions.create(model="tiny", messages=HI)).usage
    assert usage is not None and usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 0


async def test_a_stop_string_that_the_last_token_completes_is_the_reason(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", max_tokens=5, stop="lo")
    assert (answer.choices[0].finish_reason, answer.choices[0].text) == ("stop", "hel")


async def test_too_long_a_request_says_both_numbers_in_the_words_that_clients_look_for(url: str) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        for body in ({"prompt": "x" * 600}, {"prompt": "x" * 500, "max_tokens": 100}):
            error = (await client.post("/v1/completions", json=body)).json()["error"]
            assert "this model's maximum context length is 512 tokens" in error["message"] and "600" in error["message"]
            assert error["code"] == "context_length_exceeded" and error["reason"] == "CONTEXT_TOO_LONG"


TURN: Any = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "So "}, {"type": "text", "text": "far"}]}]
ECHOES: list[tuple[Any, Any, str]] = [
    (TURN, {"continue_final_message": True}, "So far"),
    (TURN, {}, "So far"),  # the answer and the message are an assistant's
    (HI, {"add_generation_prompt": False}, "hi"),
    (HI, {}, ""),  # the message is a user's, and the answer an assistant's
]


@pytest.mark.parametrize(("messages", "more", "echo"), ECHOES)
async def test_a_chat_repeats_the_message_that_its_answer_belongs_to(
    url: str, core: Any, messages: Any, more: Any, echo: str
) -> None:
    asked = {"messages": messages, "n": 2, "logprobs": True, **more}
    whole = await whole_of(url, "/v1/chat/completions", echo=True, **asked)
    assert [choice["message"]["content"] for choice in whole["choices"]] == [f"{echo}hello world"] * 2
    frames = await frames_of(url, "/v1/chat/completions", echo=True, **asked)
    texts = ["", ""]
    for choice in (choice for frame in frames for choice in frame["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
    assert texts == [f"{echo}hello world"] * 2
    logprobs = [len(c["logprobs"]["content"]) for frame in frames for c in frame["choices"] if c.get("logprobs")]
    assert sum(logprobs) == 2 * len(whole["choices"][0]["logprobs"]["content"]), "the message has none"
    plain = await whole_of(url, "/v1/chat/completions", **asked)
    assert [choice["message"]["content"] for choice in plain["choices"]] == ["hello world"] * 2  # negative control
    assert plain["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_a_repeated_message_stands_in_front_of_calls_and_of_no_answer(url: str, core: Any) -> None:
    asked = {"messages": TURN, "continue_final_message": True, "echo": True}
    whole = await whole_of(url, "/v1/chat/completions", **asked, max_tokens=0)
    assert whole["choices"][0]["message"]["content"] == "So far"
    frames = await frames_of(url, "/v1/chat/completions", **asked, max_tokens=0)
    assert [frame["choices"][0]["delta"].get("content") for frame in frames] == ["", "So far", None]


WIDE: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ("/v1/completions", {"prompt": "x", "logprobs": -1}, "logprobs"),
    ("/v1/completions", {"prompt": "xyz", "prompt_logprobs": -1}, "prompt_logprobs"),
    ("/v1/completions", {"prompt": "xyz", "echo": True, "logprobs": -1}, "logprobs"),
    (
        "/inference/v1/generate",
        {"token_ids": [5, 6], "sampling_params": {"logprobs": -1, "max_tokens": 2}},
        "sampling_params.logprobs",
    ),
]


@pytest.mark.parametrize(("path", "body", "field"), WIDE)
async def test_the_whole_vocabulary_is_listed_where_the_setting_allows_it(
    url: str, core: Any, path: str, body: Any, field: str
) -> None:
    short = {} if "sampling_params" in body else {"max_tokens": 2}
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        refused = await client.post(path, json=body | short)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, field)
        assert "whole vocabulary has 261 tokens" in error["message"] and "max_logprobs is 20" in error["message"]
    core.limits = replace(core.limits, max_logprobs=-1)
    answer = (await whole_of(url, path, **body, **short))["choices"][0]
    if "prompt_logprobs" in body:
        assert [len(each or ()) for each in answer["prompt_logprobs"]] == [0, 261, 261]
        return
    assert {stream.choice.sampling.top_logprobs for stream in core.streams} == {261}
    if "echo" in body:
        assert len(answer["logprobs"]["tokens"]) == 5 and len(answer["logprobs"]["top_logprobs"][1]) > 100
    elif path != "/v1/completions":
        listed = [entry["top_logprobs"] for entry in answer["logprobs"]["content"]]
        assert len(listed) == 2 and min(map(len, listed)) > 255  # this core lists some tokens twice
    else:
        assert all(len(each) > 100 for each in answer["logprobs"]["top_logprobs"])  # equal texts are one


async def test_a_number_beyond_the_setting_is_refused_and_so_is_too_much_at_once(url: str, core: Any) -> None:
    core.limits = replace(core.limits, max_logprobs=100)
    completion = {"prompt": "x", "max_tokens": 2}
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:

        async def refusal(**more: Any) -> tuple[str, str]:
            answer = await client.post("/v1/completions", json=completion | more)
            assert answer.status_code == 400, answer.text
            return answer.json()["error"]["param"], answer.json()["error"]["message"]

        assert (await client.post("/v1/completions", json=completion | {"logprobs": 100})).status_code == 200
        assert await refusal(logprobs=101) == ("logprobs", "logprobs must be from 0 to 100, not 101")
        assert (await refusal(logprobs=21, use_beam_search=True))[0] == "logprobs"
        field, message = await refusal(logprobs=100, n=128, max_tokens=400)
        assert field == "logprobs" and "2097152 logprobs in one answer: lower max_tokens" in message
        assert (await client.post("/v1/completions", json=completion | {"logprobs": 20, "n": 128})).status_code == 200
        core.adjusts_logits = False
        field, message = await refusal(logprobs=21)
        assert field == "logprobs" and "GPUs" in message
        assert (await client.post("/v1/completions", json=completion | {"logprobs": 20})).status_code == 200


async def test_a_smaller_setting_bounds_lists_too(url: str, core: Any) -> None:
    core.limits = replace(core.limits, max_logprobs=5)
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        chat = {"messages": HI, "logprobs": True, "max_tokens": 1}
        assert (await client.post("/v1/chat/completions", json=chat | {"top_logprobs": 5})).status_code == 200
        refused = await client.post("/v1/chat/completions", json=chat | {"top_logprobs": 6})
        assert refused.json()["error"]["param"] == "top_logprobs"
        response = await client.post("/v1/responses", json={"input": "hi", "top_logprobs": -1})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "top_logprobs")
