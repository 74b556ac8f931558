"""instructor: response models as tools, strict tools, JSON schema, JSON mode, parallel tools, streamed parts, lists."""

import asyncio
import os
from collections.abc import Iterable
from typing import Literal

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

MODEL = os.environ["MESH_MODEL"]


class Person(BaseModel):
    """A person"""

    name: str
    age: int


class InstructorTier(BaseModel):
    """The workers of a tier"""

    tier: Literal["prefill", "decode"]
    workers: int


class get_weather(BaseModel):
    """Get the weather in a city"""

    city: str


class AnyObject(BaseModel, extra="allow"):
    """An object"""


ASK = [{"role": "user", "content": "Write a JSON object. Use name Ada and age 31."}]
MODES = (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA)


def modes() -> None:
    for mode in MODES:
        client = instructor.from_openai(OpenAI(), mode=mode)
        found = client.chat.completions.create(model=MODEL, messages=ASK, response_model=Person, max_tokens=128)
        assert isinstance(found, Person), (mode, found)
        assert (found.name, found.age) == ("Ada", 31), (mode, found)
        parts = list(
            client.chat.completions.create_partial(model=MODEL, messages=ASK, response_model=Person, max_tokens=128)
        )
        assert (parts[-1].name, parts[-1].age) == ("Ada", 31), (mode, parts)


def any_object() -> None:
    client = instructor.from_openai(OpenAI(), mode=instructor.Mode.JSON)
    found = client.chat.completions.create(model=MODEL, messages=ASK, response_model=AnyObject, max_tokens=256)
    assert found.model_dump(), "JSON mode gives an object; its names are the model's own"


def several() -> None:
    client = instructor.from_openai(OpenAI(), mode=instructor.Mode.TOOLS)
    question = [{"role": "user", "content": "How many decode workers run?"}]
    found = client.chat.completions.create(
        model=MODEL, messages=question, response_model=Iterable[InstructorTier], max_tokens=256
    )
    assert all(isinstance(each, InstructorTier) for each in found)
    parallel = instructor.from_openai(OpenAI(), mode=instructor.Mode.PARALLEL_TOOLS)
    weather = [{"role": "user", "content": "What is the weather in Paris?"}]
    calls = parallel.chat.completions.create(
        model=MODEL, messages=weather, response_model=Iterable[get_weather], max_tokens=256
    )
    assert [call.city for call in calls] == ["Paris"], calls


async def concurrent() -> None:
    client = instructor.from_openai(AsyncOpenAI())
    found, completion = await client.chat.completions.create_with_completion(
        model=MODEL, messages=ASK, response_model=Person, max_tokens=128
    )
    assert found.name == "Ada" and completion.usage.completion_tokens > 2


def main() -> None:
    modes()
    any_object()
    several()
    asyncio.run(concurrent())


if __name__ == "__main__":
    main()
