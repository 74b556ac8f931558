"""OpenAI Agents SDK: tools, output types, hand-offs, streams, over chat completions and Responses."""

import asyncio
import json
import os
import random
from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = os.environ["MESH_MODEL"]
ANSWER, DEGREES = "20 + 22 = 42.", random.randint(10, 30)


class AgentsTier(BaseModel):
    tier: Literal["prefill", "decode"]
    workers: int


@function_tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return json.dumps({"city": city, "degrees": DEGREES, "sky": "sunny"})


async def tried(model: OpenAIChatCompletionsModel | OpenAIResponsesModel) -> None:
    settings = ModelSettings(max_tokens=128, store=False)
    plain = Agent(name="Sums", instructions="You are a helpful assistant.", model=model, model_settings=settings)
    first = await Runner.run(plain, "What is 20 + 22?")
    assert first.final_output == ANSWER, first
    again = [*first.to_input_list(), {"role": "user", "content": "What is 30 + 14?"}]
    assert (await Runner.run(plain, again)).final_output == "30 + 14 = 44."
    stream = Runner.run_streamed(plain, "What is 20 + 22?")
    kinds = {event.type async for event in stream.stream_events()}
    assert stream.final_output == ANSWER and "raw_response_event" in kinds, kinds

    helped = plain.clone(name="Weather", tools=[get_weather])
    run = await Runner.run(helped, "What is the weather in Paris?")
    assert str(DEGREES) in run.final_output and "Paris" in run.final_output, run
    stream = Runner.run_streamed(helped, "What is the weather in Paris?")
    items = [event.item.type async for event in stream.stream_events() if event.type == "run_item_stream_event"]
    assert items == ["tool_call_item", "tool_call_output_item", "message_output_item"], items
    assert str(DEGREES) in stream.final_output

    typed = plain.clone(name="Tiers", output_type=AgentsTier)
    assert isinstance((await Runner.run(typed, "How many decode workers run?")).final_output, AgentsTier)
    forced = plain.clone(name="Front", handoffs=[typed], model_settings=ModelSettings(tool_choice="required"))
    handed = await Runner.run(forced, "How many decode workers run?")
    assert handed.last_agent.name == "Tiers" and isinstance(handed.final_output, AgentsTier), handed


async def main() -> None:
    set_tracing_disabled(True)  # traces would go to OpenAI
    client = AsyncOpenAI()
    await tried(OpenAIChatCompletionsModel(MODEL, client))
    await tried(OpenAIResponsesModel(MODEL, client))


if __name__ == "__main__":
    asyncio.run(main())
