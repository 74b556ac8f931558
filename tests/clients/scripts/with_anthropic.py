"""/v1/messages: sync, async, streams, tools with results, structured output, count_tokens, errors.

The client of Anthropic, with strict validation of the answers."""

import asyncio
import os
import random
from typing import Any

import anthropic
from anthropic import Anthropic, AsyncAnthropic

MODEL = os.environ["MESH_MODEL"]
QUESTION: list[Any] = [{"role": "user", "content": "What is 20 + 22?"}]
ANSWER = "20 + 22 = 42."
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def texts(client: Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=64, messages=QUESTION)
    assert message.role == "assistant" and message.stop_reason == "end_turn", message
    assert [(part.type, part.text) for part in message.content] == [("text", ANSWER)], message
    assert message.usage.input_tokens > 2 and message.usage.output_tokens > 2
    short = client.messages.create(model=MODEL, max_tokens=2, messages=QUESTION, system="You are a helpful assistant.")
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 2
    stopped = client.messages.create(model=MODEL, max_tokens=64, messages=QUESTION, stop_sequences=["="])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == "=", stopped
    count = client.messages.count_tokens(model=MODEL, messages=QUESTION)
    assert count.input_tokens == message.usage.input_tokens, (count, message.usage)


def streams(client: Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=64, messages=QUESTION) as stream:
        assert "".join(stream.text_stream) == ANSWER
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 2
    events = list(client.messages.create(model=MODEL, max_tokens=64, messages=QUESTION, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"], kinds
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds


def tools(client: Anthropic) -> None:
    degrees = random.randint(10, 30)
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    called = client.messages.create(model=MODEL, max_tokens=64, messages=messages, tools=[WEATHER])
    assert called.stop_reason == "tool_use", called
    call = next(part for part in called.content if part.type == "tool_use")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    result = f'{{"city": "Paris", "degrees": {degrees}, "sky": "sunny"}}'
    messages += [
        {"role": "assistant", "content": called.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result}]},
    ]
    answer = client.messages.create(model=MODEL, max_tokens=64, messages=messages, tools=[WEATHER])
    assert str(degrees) in answer.content[0].text, answer
    with client.messages.stream(
        model=MODEL, max_tokens=64, messages=messages[:1], tools=[WEATHER], tool_choice={"type": "any"}
    ) as stream:
        final = stream.get_final_message()
    assert final.content[-1].type == "tool_use" and final.content[-1].input == {"city": "Paris"}, final


def errors(client: Anthropic) -> None:
    try:
        client.messages.create(model="other", max_tokens=4, messages=QUESTION)
    except anthropic.NotFoundError as error:
        assert error.body["error"]["type"] == "not_found_error", error.body
    else:
        raise AssertionError("an unknown model is an error")
    try:
        client.messages.create(model=MODEL, max_tokens=4, messages=[{"role": "robot", "content": "?"}])
    except anthropic.BadRequestError as error:
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    else:
        raise AssertionError("an unknown role is an error")


async def concurrent() -> None:
    async with AsyncAnthropic() as client:
        asked = (client.messages.create(model=MODEL, max_tokens=64, messages=QUESTION) for _ in range(8))
        assert {message.content[0].text for message in await asyncio.gather(*asked)} == {ANSWER}


def main() -> None:
    client = Anthropic(_strict_response_validation=True)
    for part in (texts, streams, tools, errors):
        part(client)
    asyncio.run(concurrent())


if __name__ == "__main__":
    main()
