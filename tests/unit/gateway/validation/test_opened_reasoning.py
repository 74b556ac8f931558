"""Reasoning that the chat template has opened: a form leaves no room for it, and a cut takes it away."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.inference.v1 import inference_pb2 as pb
from tests.unit.gateway.public_grpc import RICH_TEMPLATE
from tests.unit.gateway.validation.test_thinking import HI, OPENED, budget, marked, post, reached

TOOLS: Any = [{"type": "function", "function": {"name": "add"}}]
CHAT = "/v1/chat/completions"
CALL = b'<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
FORCED: dict[str, Any] = {
    "response_format": {"response_format": {"type": "json_object"}},
    "structured_outputs": {"structured_outputs": {"choice": ["{}"]}},
    "tools and a form": {"tools": TOOLS, "response_format": {"type": "json_object"}},
}


@pytest.fixture
def template() -> str:
    return OPENED


@pytest.fixture
def folder(folder: Path, template: str) -> Path:
    (folder / "chat_template.jinja").write_text(template)
    marked("<think>", "</think>").save(str(folder / "tokenizer.json"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 263}))
    return folder


async def message(url: str, **body: Any) -> Any:
    return (await post(url, CHAT, messages=HI, **body))["choices"][0]["message"]


@pytest.mark.parametrize("form", FORCED)
async def test_an_answer_in_a_form_is_content(url: str, core: Any, form: str) -> None:
    core.reply = b"{}"
    found = await message(url, **FORCED[form])
    assert found["content"] == "{}" and not found.get("reasoning_content")
    found = await message(url)  # negative control
    assert not found["content"] and found["reasoning_content"] == "{}"


async def test_a_forced_call_is_a_call(url: str, core: Any) -> None:
    core.reply = CALL
    found = await message(url, tools=TOOLS, tool_choice="required")
    assert found["tool_calls"][0]["function"]["name"] == "add" and found["content"] is None
    assert not (await message(url, tools=TOOLS)).get("tool_calls"), "a model that is free still reasons"


async def test_a_form_keeps_any_budget(url: str, core: Any) -> None:
    for form in (*FORCED.values(), {"tools": TOOLS, "tool_choice": "required"}):
        await message(url, thinking_token_budget=7, **form)
        assert reached(core) == budget(7) and core.streams[-1].choice.sampling.grammar
    await post(url, "/v1/completions", prompt="<think>a", thinking_token_budget=7, **FORCED["response_format"])
    assert reached(core) == budget(7)
    strict = [{"type": "function", "function": {"name": "add", "strict": True}}]
    await message(url, thinking_token_budget=7, tools=strict)  # text stands around calls
    assert reached(core) == budget(7, begun=True) and core.streams[-1].choice.sampling.grammar


async def test_a_mark_that_is_cut_off_has_opened_nothing(url: str, core: Any) -> None:
    core.reply = b"Hi"
    for cut, opened in (
        ({}, True),
        ({"truncate_prompt_tokens": 2}, True),  # the mark and a line feed
        ({"truncate_prompt_tokens": 1}, False),
        ({"truncate_prompt_tokens": 3, "truncation_side": "right"}, False),
        ({"truncate_prompt_tokens": 300, "truncation_side": "right"}, True),
    ):
        found = await message(url, thinking_token_budget=7, **cut)
        assert found["content"] == ("" if opened else "Hi"), cut
        assert reached(core) == budget(7, begun=opened), cut


async def test_the_same_over_grpc(stub: Any, core: Any) -> None:
    core.reply = b"{}"
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    right = pb.TRUNCATION_SIDE_RIGHT
    for more, opened in (
        ({}, True),
        ({"structured_output": pb.StructuredOutput(json_object=True)}, False),
        ({"truncate_prompt_tokens": 3, "truncation_side": right}, False),
    ):
        answer = await stub.Generate(pb.GenerateRequest(chat=chat, **more))
        assert (answer.choices[0].text, answer.choices[0].reasoning) == (("", "{}") if opened else ("{}", ""))


class TestTemplateThatOpensNothing:
    @pytest.fixture
    def template(self) -> str:
        return RICH_TEMPLATE

    async def test_reasoning_of_a_continued_message_ends_with_its_mark(self, url: str, core: Any) -> None:
        core.reply = b"Hi"
        begun = [*HI, {"role": "assistant", "content": "<think>Let me see, my friend"}]
        body = {"messages": begun, "continue_final_message": True}
        for cut, opened in (({}, True), ({"truncate_prompt_tokens": 5}, False)):
            found = await post(url, CHAT, **body, **cut)
            assert found["choices"][0]["message"]["content"] == ("" if opened else "Hi"), cut
