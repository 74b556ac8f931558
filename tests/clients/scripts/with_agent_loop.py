"""an agent loop of our own: the model calls two tools, and its answers use what they return.

The tools return numbers that the script has just drawn, so an answer that names them has read the results. The second
question contains the first result."""

import json
import os
import random
from collections.abc import Callable
from typing import Any

from openai import OpenAI

MODEL = os.environ["MESH_MODEL"]
CITY, DEGREES = "Paris", random.randint(10, 30)


def declared(name: str, description: str, **parameters: str) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in parameters.items()}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    declared("get_weather", "Get the weather in a city", city="string"),
    declared("multiply", "Multiply two numbers", a="integer", b="integer"),
]
FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "get_weather": lambda city: {"city": city, "degrees": DEGREES, "sky": "sunny"},
    "multiply": lambda a, b: {"result": a * b},
}


def answered(client: OpenAI, messages: list[Any], called: list[str]) -> str:
    """The answer to the last message; the loop calls the tools that the model wants and appends all turns."""
    for _ in range(4):
        chat = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        message = chat.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            called.append(call.function.name)
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        if not message.tool_calls:
            return message.content or ""
    raise AssertionError(f"the model calls tools without an end: {called}")


def main() -> None:
    client, called = OpenAI(), list[str]()
    messages: list[Any] = [{"role": "system", "content": "You are a helpful assistant."}]
    messages.append({"role": "user", "content": f"What is the weather in {CITY}?"})
    first = answered(client, messages, called)
    assert called == ["get_weather"] and CITY in first and str(DEGREES) in first, (called, first)
    messages.append({"role": "user", "content": f"Use the tool to multiply {DEGREES} by 3."})
    second = answered(client, messages, called)
    assert called == ["get_weather", "multiply"] and str(3 * DEGREES) in second, (called, second)


if __name__ == "__main__":
    main()
