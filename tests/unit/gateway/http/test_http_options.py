"""Options of a request over HTTP: sampling parameters, stops, lengths and logprobs."""

import asyncio
from typing import Any

import openai
import pytest

from tests.harness.waiting import within

HI: Any = [{"role": "user", "content": "hi"}]


async def test_choices_share_the_seed_and_differ_in_their_index(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = lambda choice: b"choice %d" % choice.sampling.choice
    answer = await client.chat.completions.create(model="tiny", messages=HI, n=3, seed=42)
    assert [choice.message.content for choice in answer.choices] == ["choice 0", "choice 1", "choice 2"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert {stream.choice.sampling.seed for stream in core.streams} == {42}
    assert len({stream.choice.request_id for stream in core.streams}) == 1


async def test_a_seed_is_drawn_when_the_client_gave_none(client: openai.AsyncOpenAI, core: Any) -> None:
    for _ in range(2):
        await client.chat.completions.create(model="tiny", messages=HI)
    first, second = (stream.choice.sampling.seed for stream in core.streams)
    assert first != second


async def test_max_tokens_end_with_length(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.chat.completions.create(model="tiny", messages=HI, max_completion_tokens=4)
    assert answer.choices[0].message.content == "hell"
    assert answer.choices[0].finish_reason == "length"
    assert core.streams[0].choice.sampling.max_tokens == 4


async def test_without_max_tokens_the_answer_may_fill_context_and_pool(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="ab")
    core.context_tokens, core.largest_pool_tokens = 300, 200
    await client.completions.create(model="tiny", prompt="ab")
    assert [stream.choice.sampling.max_tokens for stream in core.streams] == [510, 198]


async def test_a_stop_string_ends_the_answer_across_tokens_and_cancels_the_rest(
    client: openai.AsyncOpenAI, core: Any
) -> None:
    core.reply = b"one two three"
    answer = await client.chat.completions.create(model="tiny", messages=HI, stop=["o t", "three"])
    assert answer.choices[0].message.content == "one tw"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].to_dict()["stop_reason"] == "o t"
    await within(20, lambda: core.streams[0].cancelled)


async def test_text_that_may_become_a_stop_string_is_held_back(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply, core.ends = b"abc st", False
    seen = ""
    stream = await client.completions.create(model="tiny", prompt="x", stop="stop", stream=True)
    async with asyncio.timeout(20):
        while seen != "abc ":
            seen += (await anext(stream)).choices[0].text
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await anext(stream)
    await stream.close()


async def test_a_stop_string_may_stay_in_the_text(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(
        model="tiny", prompt="x", stop="lo", extra_body={"include_stop_str_in_output": True}
    )
    assert answer.choices[0].text == "hello"


async def test_stop_strings_do_not_end_before_min_tokens(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", stop="o", extra_body={"min_tokens": 6})
    assert answer.choices[0].text == "hello w"


async def test_stop_ids_end_without_their_text_and_are_named(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", extra_body={"stop_token_ids": [ord("w")]})
    assert answer.choices[0].text == "hello "
    assert answer.choices[0].to_dict()["stop_reason"] == ord("w")
    answer = await client.completions.create(model="tiny", prompt="x")
    assert answer.choices[0].to_dict()["stop_reason"] is None


async def test_ignore_eos_takes_the_models_ids_off_the_stop_ids(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x", max_tokens=3, extra_body={"ignore_eos": True})
    await client.completions.create(model="tiny", prompt="x", max_tokens=3)
    assert [stream.choice.sampling.stop_ids for stream in core.streams] == [(), (257,)]


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
    choice = core.streams[0].choice
    sampling = choice.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 5, 0.1)
    assert (sampling.seed, sampling.max_tokens, sampling.min_tokens) == (2**64 - 1, 9, 2)
    assert choice.priority == -3
    assert len(choice.salt) == 16


async def test_the_default_temperature_is_one_and_zero_is_kept(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x")
    await client.completions.create(model="tiny", prompt="x", temperature=0)
    assert [stream.choice.sampling.temperature for stream in core.streams] == [1.0, 0.0]


@pytest.mark.parametrize("generation", [{"temperature": 0.6, "top_k": 20, "top_p": 0.9, "min_p": 0.1}])
async def test_the_models_folder_decides_where_a_request_does_not(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.completions.create(model="tiny", prompt="x")
    own: Any = {"top_k": 0, "min_p": 0.0}
    await client.completions.create(model="tiny", prompt="x", temperature=0, top_p=1.0, extra_body=own)
    sampled = [stream.choice.sampling for stream in core.streams]
    assert [(one.temperature, one.top_k, one.top_p, one.min_p) for one in sampled] == [
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


@pytest.mark.parametrize("reply", ["né 漢字 end".encode(), b"a\xe6\xbcb \xff\xff\xff\xff c", b"a\xff"])
async def test_offsets_are_places_in_the_text_streamed_or_whole(
    client: openai.AsyncOpenAI, core: Any, reply: bytes
) -> None:
    core.reply = reply
    arguments: Any = {"model": "tiny", "prompt": "x: ", "logprobs": 1, "stop": ["nothing"]}
    whole = (await client.completions.create(**arguments)).choices[0]
    text, offsets = "", []
    async for chunk in await client.completions.create(stream=True, **arguments):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs is not None:
            offsets += chunk.choices[0].logprobs.text_offset or []
    assert whole.logprobs is not None and whole.logprobs.tokens is not None
    assert (text, offsets) == (whole.text, whole.logprobs.text_offset)
    starts = [reply[:place].decode("utf-8", "ignore") for place in range(len(reply))]
    if b"\xff" not in reply and b"\xe6\xbcb" not in reply:
        assert offsets[: len(reply)] == [len(start) for start in starts]
    for token, offset in zip(whole.logprobs.tokens, offsets, strict=False):
        assert "\ufffd" in token or token == "<|end|>" or text[offset:].startswith(token)


async def test_completion_logprobs_have_the_old_form(client: openai.AsyncOpenAI, core: Any) -> None:
    answer = await client.completions.create(model="tiny", prompt="x", logprobs=2, max_tokens=3)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["h", "e", "l"]
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.top_logprobs is not None and logprobs.top_logprobs[0] == {"h": -0.5, "i": -1.5}
    zero = await client.completions.create(model="tiny", prompt="x", logprobs=0, max_tokens=1)
    assert core.streams[-1].choice.sampling.top_logprobs == 0
    assert zero.choices[0].logprobs is not None and zero.choices[0].logprobs.top_logprobs == [None]
