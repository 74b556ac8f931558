"""completion, acompletion, streams, tools, response_format, text completion, embedding, mapped errors.

LiteLLM calls Baton as its provider `openai`, and as `hosted_vllm`, as proxies of it do."""

import asyncio
import json
import os
from typing import Any

import litellm

URL = os.environ["OPENAI_BASE_URL"]
MODEL, VLLM = f"openai/{os.environ['MESH_MODEL']}", f"hosted_vllm/{os.environ['MESH_MODEL']}"
QUESTION = [{"role": "user", "content": "What is 20 + 22?"}]
ANSWER = "20 + 22 = 42."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"tier": {"enum": ["prefill", "decode"]}, "workers": {"type": "integer"}},
    "required": ["tier", "workers"],
    "additionalProperties": False,
}


def chats(model: str) -> None:
    chat = litellm.completion(model=model, messages=QUESTION, api_base=URL, seed=7, user="me")
    assert chat.choices[0].message.content == ANSWER and chat.usage.completion_tokens > 2, chat
    chunks = litellm.completion(
        model=model, messages=QUESTION, api_base=URL, stream=True, stream_options={"include_usage": True}
    )
    held = list(chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in held if chunk.choices) == ANSWER
    assert litellm.stream_chunk_builder(held).choices[0].message.content == ANSWER


def forms(model: str) -> None:
    asked: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = litellm.completion(model=model, messages=asked, tools=[WEATHER], tool_choice="auto", api_base=URL)
    (call,) = called.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Paris"} and called.choices[0].finish_reason == "tool_calls"
    asked += [
        called.choices[0].message,
        {"role": "tool", "tool_call_id": call.id, "content": '{"city": "Paris", "degrees": 17, "sky": "cloudy"}'},
    ]
    answer = litellm.completion(model=model, messages=asked, tools=[WEATHER], api_base=URL)
    assert "17" in answer.choices[0].message.content, answer
    form = {"type": "json_schema", "json_schema": {"name": "tier", "schema": SCHEMA, "strict": True}}
    chat = litellm.completion(model=model, messages=QUESTION, response_format=form, max_tokens=64, api_base=URL)
    value = json.loads(chat.choices[0].message.content)
    assert value.keys() == {"tier", "workers"} and value["tier"] in ("prefill", "decode"), value


def others() -> None:
    text = litellm.text_completion(
        model=f"text-completion-{MODEL}", prompt="Once upon a time", max_tokens=8, api_base=URL
    )
    assert len(text.choices[0].text) > 8, text
    vectors = litellm.embedding(model=MODEL, input=["Once", "upon"], api_base=URL, encoding_format="float")
    assert len(vectors.data) == 2 and len(vectors.data[0]["embedding"]) > 16
    try:
        litellm.completion(model=MODEL, messages=[{"role": "user", "content": "a " * 9000}], api_base=URL)
    except litellm.ContextWindowExceededError as error:
        assert "2048" in str(error), error
    else:
        raise AssertionError("a prompt longer than the context is an error that LiteLLM knows")


async def concurrent() -> None:
    asked = (litellm.acompletion(model=MODEL, messages=QUESTION, api_base=URL) for _ in range(8))
    assert {chat.choices[0].message.content for chat in await asyncio.gather(*asked)} == {ANSWER}


def main() -> None:
    litellm.telemetry = False
    for model in (MODEL, VLLM):
        chats(model)
        forms(model)
    others()
    asyncio.run(concurrent())


if __name__ == "__main__":
    main()
