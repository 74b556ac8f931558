"""smolagents: chat, streams, tools, a ToolCallingAgent (tool_choice: required)."""

import os

from smolagents import ChatMessage, OpenAIModel, Tool, ToolCallingAgent

MODEL, URL = os.environ["MESH_MODEL"], os.environ["OPENAI_BASE_URL"]


class Weather(Tool):  # type: ignore[misc]
    name = "get_weather"
    description = "Get the weather in a city"
    inputs = {"city": {"type": "string", "description": "The city"}}  # noqa: RUF012
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()
        self.cities = list[str]()

    def forward(self, city: str) -> str:
        self.cities.append(city)
        return f'{{"city": "{city}", "degrees": 17, "sky": "sunny"}}'


def main() -> None:
    model = OpenAIModel(model_id=MODEL, api_base=URL, api_key="none", max_tokens=64)
    question = [{"role": "user", "content": [{"type": "text", "text": "What is 20 + 22?"}]}]
    answer = model.generate(question)
    assert isinstance(answer, ChatMessage) and answer.content == "20 + 22 = 42.", answer
    assert answer.token_usage is not None and answer.token_usage.output_tokens > 2
    text = "".join(delta.content or "" for delta in model.generate_stream(question))
    assert text == "20 + 22 = 42.", text

    weather = Weather()
    asked = [{"role": "user", "content": [{"type": "text", "text": "What is the weather in Paris?"}]}]
    called = model.generate(asked, tools_to_call_from=[weather])
    assert called.tool_calls[0].function.name == "get_weather", called
    assert "Paris" in str(called.tool_calls[0].function.arguments), called

    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=2, verbosity_level=0)
    # The instructions that come with the agent are longer than the context of the built-in model.
    agent.prompt_templates["system_prompt"] = "You are a helpful assistant."
    result = agent.run("What is the weather in Paris?")
    assert weather.cities and weather.cities[0] == "Paris", agent.memory.get_full_steps()
    assert result is not None


if __name__ == "__main__":
    main()
