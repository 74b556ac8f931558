"""The OpenAI SDK finds an OpenAI API: whole answers, streams, choices, logprobs, stops, usage."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import openai
import pytest

from mesh.errors import Unavailable

HI: Any = [{"role": "user", "content": "hi"}]


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_chat_is_answered_whole(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=HI)
    (choice,) = answer.choices
    assert choice.message.content == "hello world"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (5, 12, 17)
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 3)
    timings = answer.model_extra["timings"]  # what the SDK has no field for
    assert (timings["decode_steps"], timings["tokens_per_step"], timings["total_seconds"]) == (10, 1.5, 0.5)
    assert "prefill_seconds" not in timings
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"
    assert answer.created == 1_700_000_000
    assert answer.system_fingerprint == "f00d"
    assert core.handles[0].spec.prompt == (258, *b"hi", 257, 259)


async def test_a_chat_is_streamed_with_role_text_end_and_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[0].choices[0].delta.content == ""
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "hello world"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].model_extra["timings"]["tokens_per_step"] == 1.5
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


async def test_streamed_and_whole_answers_are_equal(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = "häßliche 漢字 und 😀 STOP here".encode()
    arguments: Any = {"model": "tiny", "prompt": "x", "stop": ["STOP"], "n": 3, "logprobs": 2}
    whole = await client.completions.create(**arguments)
    streamed: dict[int, str] = {}
    tokens: dict[int, list[str]] = {}
    async for chunk in await client.completions.create(stream=True, **arguments):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
            if choice.logprobs is not None and choice.logprobs.tokens is not None:
                tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens)
    assert streamed == {choice.index: choice.text for choice in whole.choices}
    assert streamed[0] == "häßliche 漢字 und 😀 "
    assert tokens == {c.index: c.logprobs.tokens for c in whole.choices if c.logprobs is not None}


async def test_choices_share_the_seed_and_differ_in_their_index(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = lambda spec: b"choice %d" % spec.sampling.choice
    answer = await client.chat.completions.create(model="tiny", messages=HI, n=3, seed=42)
    assert [choice.message.content for choice in answer.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {handle.spec.sampling.seed for handle in core.handles} == {42}
    assert len({handle.spec.request_id for handle in core.handles}) == 1


async def test_a_seed_is_drawn_when_the_client_gave_none(client: openai.AsyncOpenAI, core: Any) -> None:
    for _ in range(2):
        await client.chat.completions.create(model="tiny", messages=HI)
    first, second = (handle.spec.sampling.seed for handle in core.handles)
    assert first != second


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
async def test_completions_take_every_form_of_prompt(
    client: openai.AsyncOpenAI, core: Any, prompt: Any, expected: Any
) -> None:
    core.reply = lambda spec: bytes(spec.prompt).upper()
    answer = await client.completions.create(model="tiny", prompt=prompt)
    assert [handle.spec.prompt for handle in core.handles] == expected
    assert [choice.text for choice in answer.choices] == [bytes(ids).decode().upper() for ids in expected]
    assert answer.usage is not None and answer.usage.prompt_tokens == sum(map(len, expected))


async def test_several_prompts_with_several_choices_are_numbered_through(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = lambda spec: bytes(spec.prompt) + b"%d" % spec.sampling.choice
    expected = {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    whole = await client.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert {choice.index: choice.text for choice in whole.choices} == expected
    streamed: dict[int, str] = {}
    async for chunk in await client.completions.create(model="tiny", prompt=["a", "b"], n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
    assert streamed == expected


async def test_max_tokens_end_with_length(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=4)
    assert answer.choices[0].message.content == "hell"
    assert answer.choices[0].finish_reason == "length"
    assert core.handles[0].spec.sampling.max_tokens == 4


async def test_without_max_tokens_the_answer_may_fill_context_and_pool(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="ab")
    core.context_tokens, core.largest_pool_tokens = 300, 200
    await client.completions.create(model="tiny", prompt="ab")
    assert [handle.spec.sampling.max_tokens for handle in core.handles] == [510, 198]


async def test_a_stop_string_ends_the_answer_across_tokens_and_cancels_the_rest(
    client: openai.AsyncOpenAI, core: Any
) -> None:
    core.reply = b"one two three"
    answer = await client.chat.completions.create(model="tiny", messages=HI, stop=["o t", "three"])
    assert answer.choices[0].message.content == "one tw"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].to_dict()["stop_reason"] == "o t"
    await within(30, lambda: core.handles[0].cancelled)


async def test_text_that_may_become_a_stop_string_is_held_back(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply, core.ends = b"abc st", False
    seen = ""
    stream = await client.completions.create(model="tiny", prompt="x", stop="stop", stream=True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            async for chunk in stream:
                seen += chunk.choices[0].text
    await stream.close()
    assert seen == "abc "


async def test_a_stop_string_may_stay_in_the_text(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(
        model="tiny", prompt="x", stop="lo", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].text == "hello"


async def test_stop_strings_do_not_end_before_min_tokens(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", stop="o", extra_body={"min_tokens": 6})
    assert answer.choices[0].text == "hello w"


async def test_stop_ids_end_without_their_text_and_are_told(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", extra_body={"stop_token_ids": [ord("w")]})
    assert answer.choices[0].text == "hello "
    assert answer.choices[0].to_dict()["stop_reason"] == ord("w")
    answer = await client.completions.create(model="tiny", prompt="x")
    assert answer.choices[0].to_dict()["stop_reason"] is None


async def test_ignore_eos_takes_the_models_ids_off_the_stop_ids(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x", max_tokens=3, extra_body={"ignore_eos": True})
    await client.completions.create(model="tiny", prompt="x", max_tokens=3)
    assert [handle.spec.sampling.stop_ids for handle in core.handles] == [(), (257,)]


async def test_sampling_options_reach_the_core(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(
        model="tiny",
        prompt="x",
        temperature=0.5,
        top_p=0.9,
        seed=-1,
        max_tokens=9,
        extra_body={"top_k": 5, "min_p": 0.1, "min_tokens": 2, "priority": -3, "cache_salt": "tenant"},
    )
    spec = core.handles[0].spec
    sampling = spec.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (2**64 - 1, 9, 2)
    assert spec.priority == -3
    assert len(spec.salt) == 16


async def test_the_default_temperature_is_one_and_zero_is_kept(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x")
    await client.completions.create(model="tiny", prompt="x", temperature=0)
    assert [handle.spec.sampling.temperature for handle in core.handles] == [1.0, 0.0]


@pytest.mark.parametrize("generation", [{"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1}])
async def test_what_a_request_leaves_open_the_models_folder_decides(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x")
    own: Any = {"top_k": 0, "min_p": 0.0}
    await client.completions.create(model="tiny", prompt="x", temperature=0, top_p=1.0, extra_body=own)
    asked = [handle.spec.sampling for handle in core.handles]
    assert [(one.temperature, one.top_k, one.top_p, one.min_p) for one in asked] == [
        (0.6, 20, 0.9, 0.1),
        (0.0, 0, 1.0, 0.0),
    ]


async def test_chat_logprobs_carry_tokens_bytes_and_the_likeliest(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = "é".encode()
    answer = await client.chat.completions.create(
        model="tiny", messages=HI, logprobs=True, top_logprobs=2, max_tokens=2
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert [entry.bytes for entry in logprobs.content] == [[0xC3], [0xA9]]
    assert [len(entry.top_logprobs) for entry in logprobs.content] == [2, 2]
    assert logprobs.content[0].logprob == -0.5
    without = await client.chat.completions.create(model="tiny", messages=HI)
    assert without.choices[0].logprobs is None


async def test_completion_logprobs_have_the_old_form(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["h", "e", "l"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None and logprobs.top_logprobs[0] == {"h": -0.5, "i": -1.5}
    zero = await client.completions.create(model="tiny", prompt="x", logprobs=0, max_tokens=1)
    assert core.handles[-1].spec.sampling.top_logprobs == 0
    assert zero.choices[0].logprobs is not None and zero.choices[0].logprobs.top_logprobs == [None]


async def test_echo_puts_the_prompt_before_the_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="say: ", echo=True)
    assert answer.choices[0].text == "say: hello world"


async def test_a_template_sees_its_arguments(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
        extra_body={"chat_template_kwargs": {"shout": True}, "add_generation_prompt": False},
    )
    assert core.handles[0].spec.prompt == (258, *b"hi", 257, ord("!"))


async def test_models_are_listed_and_named(client: openai.AsyncOpenAI) -> None:
    models = await client.models.list()
    assert [model.id for model in models.data] == ["tiny"]
    assert (await client.models.retrieve("tiny")).to_dict()["max_model_len"] == 512
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_health_follows_the_core(url: str, core: Any) -> None:
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/health")).status_code == 200
        core.up = False
        assert (await http.get(f"{url}/health")).status_code == 503


async def test_the_request_id_comes_back_and_reaches_the_core(url: str, core: Any) -> None:
    body = {"model": "tiny", "prompt": "x"}
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with httpx.AsyncClient() as http:
        for stream in (False, True):
            answer = await http.post(
                f"{url}/v1/completions",
                json=body | {"stream": stream},
                headers={"x-request-id": "mine-1", "traceparent": parent},
            )
            assert answer.headers["x-request-id"] == "mine-1"
        drawn = await http.post(f"{url}/v1/completions", json=body)
        refused = await http.post(f"{url}/v1/completions", json={}, headers={"x-request-id": "mine-2"})
    assert core.handles[0].spec.request_id == "mine-1"
    assert core.handles[0].spec.traceparent == parent
    assert drawn.headers["x-request-id"] == core.handles[2].spec.request_id
    assert refused.headers["x-request-id"] == "mine-2"


@asynccontextmanager
async def streaming(url: str, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
    async with httpx.AsyncClient() as http, http.stream("POST", f"{url}/v1/completions", json=body) as answer:
        yield answer.aiter_lines()


async def test_a_client_that_goes_away_cancels_all_its_choices(url: str, core: Any) -> None:
    core.ends = False
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True, "n": 3}) as lines:
        async for line in lines:
            if line:
                break
    await within(30, lambda: len(core.handles) == 3 and all(handle.cancelled for handle in core.handles))


async def test_a_client_that_goes_away_cancels_an_answer_that_is_not_streamed(url: str, core: Any) -> None:
    core.ends = False
    with pytest.raises(httpx.TimeoutException):
        async with httpx.AsyncClient(timeout=1.0) as http:
            await http.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": ["x", "y"]})
    await within(30, lambda: len(core.handles) == 2 and all(handle.cancelled for handle in core.handles))


async def test_a_failure_before_the_first_token_is_an_ordinary_error(url: str, core: Any) -> None:
    core.fail_at = {0: Unavailable("nobody there", retry_after_seconds=2.5)}
    for stream in (False, True):
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                f"{url}/v1/completions", json={"model": "tiny", "prompt": "x", "stream": stream, "n": 2}
            )
        assert answer.status_code == 503
        assert answer.json()["error"]["message"] == "nobody there"
        assert answer.headers["retry-after-ms"] == "2500"
        assert answer.headers["x-should-retry"] == "true"


async def test_a_failure_in_the_middle_of_a_stream_is_an_event_and_the_stream_ends(url: str, core: Any) -> None:
    core.fail_at = {3: Unavailable("nobody there")}
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True}) as lines:
        data = [line.removeprefix("data: ") async for line in lines if line]
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["error"]["reason"] == "UNAVAILABLE"
    assert "".join(json.loads(item)["choices"][0]["text"] for item in data[:-2]) == "hel"


async def test_completions_send_no_empty_first_chunk(url: str, core: Any) -> None:
    async with streaming(url, {"model": "tiny", "prompt": "x", "stream": True}) as lines:
        data = [line.removeprefix("data: ") async for line in lines if line]
    assert json.loads(data[0])["choices"][0]["text"] == "h"


async def test_a_defect_tells_nothing_but_the_request_id(url: str, core: Any, caplog: pytest.LogCaptureFixture) -> None:
    core.refuse = ZeroDivisionError("secret detail")
    async with httpx.AsyncClient() as http:
        answer = await http.post(
            f"{url}/v1/completions", json={"model": "tiny", "prompt": "x"}, headers={"x-request-id": "r-7"}
        )
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "r-7" in answer.json()["error"]["message"]
    assert "secret detail" in caplog.text
