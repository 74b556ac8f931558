"""Ollama (Python): list, show, chats, streams, tools with results, structured output, prompts, embeddings, errors.

The client of Ollama, sync and async."""

import asyncio
import json
import os
import random
from typing import Any

import ollama
from ollama import AsyncClient, Client

MODEL = os.environ["MESH_MODEL"]
URL = os.environ["MESH_URL"]
QUESTION: list[Any] = [{"role": "user", "content": "What is 20 + 22?"}]
ANSWER = "20 + 22 = 42."
OPTIONS = {"temperature": 0, "num_predict": 64}


def get_weather(city: str) -> str:
    """
    Get the weather in a city

    Args:
        city: the city

    Returns:
        str: the weather
    """
    return city


def pages(client: Client) -> None:
    assert [each.model for each in client.list().models] == [MODEL]
    assert client.ps().models[0].model == MODEL
    shown = client.show(MODEL)
    assert "tools" in (shown.capabilities or []) and shown.template, shown


def texts(client: Client) -> None:
    answer = client.chat(MODEL, QUESTION, options=OPTIONS)
    assert answer.message.content == ANSWER and answer.done_reason == "stop", answer
    assert answer.prompt_eval_count and answer.eval_count and answer.total_duration
    parts = list(client.chat(f"{MODEL}:latest", QUESTION, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == ANSWER and parts[-1].done
    short = client.generate(MODEL, "What is 20 + 22?", options={"num_predict": 2, "temperature": 0})
    assert short.done_reason == "length" and short.eval_count == 2, short
    joined = "".join(part.response for part in client.generate(MODEL, "What is 20 + 22?", options=OPTIONS, stream=True))
    assert joined == ANSWER
    assert client.generate(MODEL, "").done_reason == "load"


def tools(client: Client) -> None:
    degrees = random.randint(10, 30)
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = client.chat(MODEL, messages, tools=[get_weather], options=OPTIONS)
    (call,) = called.message.tool_calls or ()
    assert call.function.name == "get_weather" and call.function.arguments == {"city": "Paris"}, called
    result = f'{{"city": "Paris", "degrees": {degrees}, "sky": "sunny"}}'
    messages += [called.message, {"role": "tool", "tool_name": "get_weather", "content": result}]
    answer = client.chat(MODEL, messages, tools=[get_weather], options=OPTIONS)
    assert str(degrees) in (answer.message.content or ""), answer
    streamed = list(client.chat(MODEL, messages[:1], tools=[get_weather], options=OPTIONS, stream=True))
    assert [call.function.arguments for part in streamed for call in part.message.tool_calls or ()] == [
        {"city": "Paris"}
    ]


def forms(client: Client) -> None:
    schema = {
        "type": "object",
        "properties": {"tier": {"enum": ["prefill", "decode"]}, "workers": {"type": "integer"}},
        "required": ["tier", "workers"],
        "additionalProperties": False,
    }
    answer = client.chat(MODEL, QUESTION, format=schema, options=OPTIONS)
    assert set(json.loads(answer.message.content or "")) == {"tier", "workers"}, answer
    free = client.chat(MODEL, QUESTION, format="json", options=OPTIONS)  # a small model may not find the end of it
    assert (free.message.content or "").startswith("{"), free


def vectors(client: Client) -> None:
    found = client.embed(MODEL, ["a cat", "the weather"]).embeddings
    assert len(found) == 2 and len(found[0]) == len(found[1]) > 8 and found[0] != found[1]


def errors(client: Client) -> None:
    for body, status in (({"model": "other"}, 404), ({"model": MODEL, "options": {"temperature": -1}}, 400)):
        try:
            client.chat(messages=QUESTION, **body)
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, error
        else:
            raise AssertionError(f"{body} is an error")


async def concurrent() -> None:
    client = AsyncClient(host=URL)
    asked = (client.chat(MODEL, QUESTION, options=OPTIONS) for _ in range(8))
    assert {answer.message.content for answer in await asyncio.gather(*asked)} == {ANSWER}
    stream = await client.chat(MODEL, QUESTION, options=OPTIONS, stream=True)
    assert "".join([part.message.content or "" async for part in stream]) == ANSWER


def main() -> None:
    client = Client(host=URL)
    for part in (pages, texts, tools, forms, vectors, errors):
        part(client)
    asyncio.run(concurrent())


if __name__ == "__main__":
    main()
