"""langchain-openai: invoke, streams, bind_tools, with_structured_output in three methods, embeddings, batch.

`ChatOpenAI` calls chat completions; its Responses mode is tried too."""

import json
import os
import random
from typing import Literal

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

MODEL = os.environ["MESH_MODEL"]
ANSWER, DEGREES = "20 + 22 = 42.", random.randint(10, 30)


class LangchainTier(BaseModel):
    """The workers of a tier."""

    tier: Literal["prefill", "decode"] = Field(description="Which tier")
    workers: int = Field(description="How many workers", ge=0, le=9)


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city"""
    return json.dumps({"city": city, "degrees": DEGREES, "sky": "sunny"})


def chats(chat: ChatOpenAI) -> None:
    answer = chat.invoke("What is 20 + 22?")
    assert answer.content == ANSWER and answer.usage_metadata is not None, answer
    assert answer.usage_metadata["output_tokens"] > 2
    assert "".join(str(chunk.content) for chunk in chat.stream("What is 20 + 22?")) == ANSWER
    many = chat.batch(["What is 20 + 22?", "What is 30 + 14?"])
    assert [each.content for each in many] == [ANSWER, "30 + 14 = 44."], many


def structured(chat: ChatOpenAI) -> None:
    for method in ("json_schema", "function_calling"):
        found = chat.with_structured_output(LangchainTier, method=method).invoke("How many decode workers run?")
        assert isinstance(found, LangchainTier) and found.tier in ("prefill", "decode"), (method, found)
    strict = chat.with_structured_output(LangchainTier, method="function_calling", strict=True, include_raw=True)
    found = strict.invoke("How many decode workers run?")
    assert isinstance(found["parsed"], LangchainTier) and found["parsing_error"] is None, found
    plain = chat.with_structured_output(None, method="json_mode").invoke("Write a JSON object: name Ada, age 31.")
    assert isinstance(plain, dict), plain


def tools(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([get_weather])
    messages: list[BaseMessage] = [SystemMessage("You are a helpful assistant.")]
    messages.append(HumanMessage("What is the weather in Paris?"))
    called = bound.invoke(messages)
    assert isinstance(called, AIMessage) and len(called.tool_calls) == 1, called
    assert (called.tool_calls[0]["name"], called.tool_calls[0]["args"]) == ("get_weather", {"city": "Paris"})
    result = get_weather.invoke(called.tool_calls[0])
    assert isinstance(result, ToolMessage)
    answer = bound.invoke([*messages, called, result])
    assert str(DEGREES) in str(answer.content), answer
    forced = chat.bind_tools([get_weather], tool_choice="any", strict=True, parallel_tool_calls=False)
    joined = None
    for chunk in forced.stream(messages):
        joined = chunk if joined is None else joined + chunk
    assert joined is not None and joined.tool_calls[0]["args"] == {"city": "Paris"}, joined


def embeddings() -> None:
    # Its own way of counting tokens is for OpenAI's models only.
    vectors = OpenAIEmbeddings(model=MODEL, check_embedding_ctx_length=False).embed_documents(["Once", "upon a time"])
    assert len(vectors) == 2 and abs(sum(value * value for value in vectors[0]) - 1) < 1e-3


def main() -> None:
    chat = ChatOpenAI(model=MODEL, max_tokens=64, temperature=0)
    chats(chat)
    structured(chat)
    tools(chat)
    embeddings()
    responses = ChatOpenAI(model=MODEL, max_tokens=64, use_responses_api=True)
    assert responses.invoke("What is 20 + 22?").text == ANSWER
    tools(responses)


if __name__ == "__main__":
    main()
