"""sync, async, streams, .parse(), logprobs, n, embeddings, errors; every answer validated strictly.

The client of OpenAI. With `_strict_response_validation` it refuses an answer whose fields are not of its types."""

import asyncio
import json
import os
import time
from typing import Literal

import openai
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = os.environ["MESH_MODEL"]
QUESTION = [{"role": "user", "content": "What is 20 + 22?"}]
ANSWER = "20 + 22 = 42."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class OpenaiTier(BaseModel):
    tier: Literal["prefill", "decode"]
    workers: int


def whole(client: OpenAI) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=QUESTION)
    assert chat.choices[0].message.content == ANSWER, chat
    assert chat.choices[0].finish_reason == "stop" and chat.model == MODEL
    assert chat.usage is not None and chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    assert chat._request_id, "the header x-request-id"
    text = client.completions.create(model=MODEL, prompt=["Once upon a time", "Once upon a"], max_tokens=8, n=2)
    assert [choice.index for choice in text.choices] == [0, 1, 2, 3] and all(choice.text for choice in text.choices)
    assert client.models.retrieve(MODEL).id == MODEL and [model.id for model in client.models.list()] == [MODEL]


def options(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, messages=QUESTION, logprobs=True, top_logprobs=3, n=2, seed=7, stop=["2."], user="me", store=False
    )
    assert [choice.message.content for choice in chat.choices] == ["20 + 22 = 4"] * 2, chat
    listed = chat.choices[0].logprobs
    assert listed is not None and listed.content is not None and len(listed.content[0].top_logprobs) == 3
    assert "".join(token.token for token in listed.content).startswith("20 + 22 = 4")
    short = client.chat.completions.create(model=MODEL, messages=QUESTION, max_completion_tokens=2)
    assert short.choices[0].finish_reason == "length" and short.usage and short.usage.completion_tokens == 2


def streams(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 2
    with client.chat.completions.stream(model=MODEL, messages=QUESTION) as events:
        kinds = [event.type for event in events]
        final = events.get_final_completion()
    assert "content.delta" in kinds and "content.done" in kinds
    assert final.choices[0].message.content == ANSWER
    # In its types no piece of a completion may lack a finish_reason, though OpenAI's own have null there too.
    text = OpenAI().completions.create(model=MODEL, prompt="Once upon a time", max_tokens=8, stream=True)
    assert len("".join(chunk.choices[0].text for chunk in text)) > 8


def forms(client: OpenAI) -> None:
    ask = "How many decode workers run?"
    chat = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": ask}], response_format=OpenaiTier, max_tokens=64
    )
    parsed = chat.choices[0].message.parsed
    assert isinstance(parsed, OpenaiTier) and parsed.tier in ("prefill", "decode"), chat
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": ask}], response_format=OpenaiTier, max_tokens=64
    ) as events:
        assert isinstance(events.get_final_completion().choices[0].message.parsed, OpenaiTier)
    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    chat = client.chat.completions.create(model=MODEL, messages=question, tools=[WEATHER])
    call = (chat.choices[0].message.tool_calls or [])[0]
    assert call.function.name == "get_weather" and call.function.arguments == '{"city": "Paris"}', call
    assert chat.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(
        model=MODEL, messages=question, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    ) as events:
        final = events.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert len(calls) == 1 and calls[0].function.parsed_arguments == {"city": "Paris"}, calls


def embeddings(client: OpenAI) -> None:
    texts = ["Once upon a time", "What is the hand-off?"]
    packed = OpenAI().embeddings.create(model=MODEL, input=texts)  # asks for base64, which its types don't know
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    assert [each.index for each in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert max(abs(a - b) for a, b in zip(one.embedding, other.embedding, strict=True)) < 1e-6
        assert abs(sum(value * value for value in one.embedding) - 1) < 1e-3


def errors(client: OpenAI) -> None:
    try:
        client.chat.completions.create(model="other", messages=QUESTION)
    except openai.NotFoundError as error:
        assert error.code == "model_not_found", error
    else:
        raise AssertionError("an unknown model is an error")
    try:
        client.completions.create(model=MODEL, prompt="a " * 5000)
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded" and error.param == "prompt", error
    else:
        raise AssertionError("a prompt longer than the context is an error")


async def concurrent() -> None:
    async with AsyncOpenAI(_strict_response_validation=True) as client:
        chats = await asyncio.gather(
            *(client.chat.completions.create(model=MODEL, messages=QUESTION) for _ in range(16))
        )
        assert {chat.choices[0].message.content for chat in chats} == {ANSWER}
        stream = await client.chat.completions.create(model=MODEL, messages=QUESTION, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == ANSWER


def responses(client: OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="What is 20 + 22?", store=False)
    assert answer.output_text == ANSWER and answer.status == "completed", answer
    assert answer.usage is not None and answer.usage.output_tokens > 2
    events = list(client.responses.create(model=MODEL, input="What is 20 + 22?", store=False, stream=True))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    parsed = client.responses.parse(
        model=MODEL, input="How many decode workers run?", text_format=OpenaiTier, store=False, max_output_tokens=64
    )
    assert isinstance(parsed.output_parsed, OpenaiTier), parsed
    tool = {"type": "function", **WEATHER["function"]}
    called = client.responses.create(model=MODEL, input="What is the weather in Paris?", tools=[tool], store=False)
    call = next(item for item in called.output if item.type == "function_call")
    assert call.name == "get_weather" and call.arguments == '{"city": "Paris"}', called


def stored(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="What is 20 + 22?")
    assert client.responses.retrieve(first.id).output_text == ANSWER
    second = client.responses.create(model=MODEL, input="What is 20 + 22?", previous_response_id=first.id)
    assert len(client.responses.input_items.list(second.id).data) == 3
    queued = client.responses.create(model=MODEL, input="What is 20 + 22?", background=True)
    found = client.responses.retrieve(queued.id)
    while found.status == "in_progress":
        time.sleep(0.05)
        found = client.responses.retrieve(queued.id)
    assert (found.status, found.output_text) == ("completed", ANSWER), found
    client.responses.delete(first.id)
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("a response that was deleted is found")


def batches(client: OpenAI) -> None:
    body = {"model": MODEL, "messages": QUESTION}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    content = json.dumps(line).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert client.files.content(file.id).read() == content
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"run": "1"}
    )
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.output_file_id is not None, batch
    (outcome,) = client.files.content(batch.output_file_id).text.splitlines()
    assert json.loads(outcome)["response"]["body"]["choices"][0]["message"]["content"] == ANSWER
    assert batch.id in {each.id for each in client.batches.list()}
    assert client.files.delete(file.id).deleted


def main() -> None:
    client = OpenAI(_strict_response_validation=True)
    for part in (whole, options, streams, forms, embeddings, errors):
        part(client)
    asyncio.run(concurrent())
    for part in (responses, stored, batches):
        part(client)


if __name__ == "__main__":
    main()
