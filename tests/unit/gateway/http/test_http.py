"""The OpenAI SDK finds an OpenAI API: whole answers, streams, choices and prompts."""

from typing import Any

import openai
import pytest

HI: Any = [{"role": "user", "content": "hi"}]


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
    assert core.streams[0].choice.prompt == (258, *b"hi", 257, 259)


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
    core.reply = lambda choice: bytes(choice.prompt).upper()
    answer = await client.completions.create(model="tiny", prompt=prompt)
    assert [stream.choice.prompt for stream in core.streams] == expected
    assert [choice.text for choice in answer.choices] == [bytes(ids).decode().upper() for ids in expected]
    assert answer.usage is not None and answer.usage.prompt_tokens == sum(map(len, expected))


async def test_several_prompts_with_several_choices_are_numbered_through(client: openai.AsyncOpenAI, core: Any) -> None:
    core.reply = lambda choice: bytes(choice.prompt) + b"%d" % choice.sampling.choice
    expected = {0: "a0", 1: "a1", 2: "b0", 3: "b1"}
    whole = await client.completions.create(model="tiny", prompt=["a", "b"], n=2)
    assert {choice.index: choice.text for choice in whole.choices} == expected
    streamed: dict[int, str] = {}
    async for chunk in await client.completions.create(model="tiny", prompt=["a", "b"], n=2, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] = streamed.get(choice.index, "") + choice.text
    assert streamed == expected


async def test_echo_puts_the_prompt_before_the_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="tiny", prompt="say: ", echo=True)
    assert answer.choices[0].text == "say: hello world"


async def test_a_template_sees_its_arguments(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
        extra_body={"chat_template_kwargs": {"shout": True}, "add_generation_prompt": False},
    )
    assert core.streams[0].choice.prompt == (258, *b"hi", 257, ord("!"))
