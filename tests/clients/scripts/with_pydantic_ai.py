"""Pydantic AI: text, history, tools, output as a tool and native, strict too, streams, over chat and Responses."""

import asyncio
import json
import os
import random
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.settings import ModelSettings

MODEL = os.environ["MESH_MODEL"]
ANSWER, DEGREES = "20 + 22 = 42.", random.randint(10, 30)
SETTINGS = ModelSettings(max_tokens=128)


class PydanticTier(BaseModel):
    """The workers of a tier"""

    tier: Literal["prefill", "decode"]
    workers: int


def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return json.dumps({"city": city, "degrees": DEGREES, "sky": "sunny"})


async def tried(model: OpenAIChatModel | OpenAIResponsesModel) -> None:
    plain = Agent(model, instructions="You are a helpful assistant.", model_settings=SETTINGS)
    first = await plain.run("What is 20 + 22?")
    assert first.output == ANSWER and first.usage.output_tokens > 2, first
    second = await plain.run("What is 30 + 14?", message_history=first.all_messages())
    assert second.output == "30 + 14 = 44.", second
    async with plain.run_stream("What is 20 + 22?") as stream:
        assert "".join([text async for text in stream.stream_text(delta=True)]) == ANSWER

    helped = Agent(model, tools=[get_weather], instructions="You are a helpful assistant.", model_settings=SETTINGS)
    run = await helped.run("What is the weather in Paris?")
    assert str(DEGREES) in run.output and "Paris" in run.output, run.all_messages()
    async with helped.run_stream("What is the weather in Paris?") as stream:
        assert str(DEGREES) in await stream.get_output()

    for form in (
        PydanticTier,
        ToolOutput(PydanticTier, strict=True),
        NativeOutput(PydanticTier),
        NativeOutput(PydanticTier, strict=True),
    ):
        agent: Agent[None, PydanticTier] = Agent(model, output_type=form, model_settings=SETTINGS)
        found = (await agent.run("How many decode workers run?")).output
        assert isinstance(found, PydanticTier), (form, found)


async def main() -> None:
    await tried(OpenAIChatModel(MODEL))
    await tried(OpenAIResponsesModel(MODEL))


if __name__ == "__main__":
    asyncio.run(main())
