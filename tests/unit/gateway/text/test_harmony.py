"""Answers in channels, as gpt-oss writes them: whole, in a stream, cut anywhere, and where they do not follow the
format."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import openai
import pytest

from gateway.prompts.assets import load_assets
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.structured.calls import call_form
from gateway.text.chat import ChatTemplate
from gateway.text.formats import HARMONY, HARMONY_ANALYSIS, HARMONY_MARKS, HERMES, reasoning_format
from gateway.text.tool_calls import AnswerFormat, ToolCall
from gateway.text.tool_choice import OfferedTools, ToolMode
from gateway.text.tools import tool_support
from tests.unit.gateway.prompts.test_assets import change
from tests.unit.gateway.prompts.test_prompt import HTTP
from tests.unit.gateway.text.test_templates import HI, text_of
from tests.unit.gateway.text.test_tool_calls import TOOLS, grown, reads_of

# What the template of gpt-oss writes, without its description of tools.
TEMPLATE = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}\n\n# Valid channels<|end|>"
    "{% if tools %}<|start|>developer<|message|># Tools\n\n{% for tool in tools %}"
    "type {{ tool.function.name }} = (_: any) => any;{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{% if m.tool_calls %}{% set call = m.tool_calls[0] %}"
    "{% if m.thinking %}{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary json<|message|>' }}"
    "{{ call.function.arguments | tojson }}<|call|>{% else %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{% else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
READING = AnswerFormat(OfferedTools(TOOLS, ToolMode.AUTO), HARMONY, HARMONY_ANALYSIS)
ARGUMENTS = {"a": [1, -2.5, None], "b": 'quo"te <|call|> <|end|> é'}
TEXT = json.dumps(ARGUMENTS)
THOUGHT = "<|channel|>analysis<|message|>They ask < 3 | 4.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>It is <b>4</b>.<|return|>"
PREAMBLE = "<|start|>assistant<|channel|>commentary<|message|>Let me look.<|end|>"
CALLS = [
    f"<|start|>assistant<|channel|>commentary to=functions.add <|constrain|>json<|message|>{TEXT}<|call|>",
    f"<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{TEXT}<|call|>",
    f"<|start|>assistant<|channel|>analysis to=functions.add code<|message|> {TEXT} <|end|>",
    f"<|channel|>commentary to=add<|message|>{TEXT}",
]

Read = tuple[str, str, list[tuple[int, str, Any]]]


def read(text: str, rng: Random | None = None, reading: AnswerFormat = READING) -> Read:
    """Text, reasoning and calls; cut into single letters without a generator."""
    reads, reader = reads_of(text, reading, rng)
    calls: list[ToolCall] = [call for one in reads for call in one.calls]
    assert reader.count <= len({call.index for call in calls})
    text, thought = ("".join(parts) for parts in zip(*((one.piece.text, one.reasoning) for one in reads), strict=True))
    return text, thought, grown(calls)


ANSWERS: list[tuple[str, Read]] = [
    (THOUGHT + FINAL, ("It is <b>4</b>.", "They ask < 3 | 4.", [])),
    (THOUGHT + FINAL.removesuffix("<|return|>"), ("It is <b>4</b>.", "They ask < 3 | 4.", [])),
    (FINAL.removeprefix("<|start|>assistant"), ("It is <b>4</b>.", "", [])),
    (THOUGHT + PREAMBLE + FINAL, ("Let me look.\n\nIt is <b>4</b>.", "They ask < 3 | 4.", [])),
    *((THOUGHT + call, ("", "They ask < 3 | 4.", [(0, "add", ARGUMENTS)])) for call in CALLS),
    (" to=functions.add<|channel|>commentary json<|message|>{}<|call|>", ("", "", [(0, "add", {})])),
    (" to=functions.get_time<|channel|>commentary json<|message|><|call|>", ("", "", [(0, "get_time", {})])),
    (
        THOUGHT + PREAMBLE + CALLS[0] + CALLS[1],
        ("Let me look.", "They ask < 3 | 4.", [(0, "add", ARGUMENTS), (1, "add", ARGUMENTS)]),
    ),
    (THOUGHT + "<|start|>assistant" + THOUGHT + FINAL, ("It is <b>4</b>.", "\n\n".join(["They ask < 3 | 4."] * 2), [])),
    ("<|channel|>analysis<|message|>cut of", ("", "cut of", [])),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assis", ("", "Hm.", [])),
    ("<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.", ("Yes.", "Hm.", [])),
    ("<|start|>assistant" + THOUGHT + FINAL, ("It is <b>4</b>.", "They ask < 3 | 4.", [])),
    ("<|message|>Yes.<|end|>", ("Yes.", "", [])),
]
ODD: list[tuple[str, Read]] = [
    ("Just text, 3 < 4 |> <|im_end|>.", ("Just text, 3 < 4 |> <|im_end|>.", "", [])),
    (" together", (" together", "", [])),
    (" t", (" t", "", [])),
    ("Yes.<|return|>", ("Yes.", "", [])),
    ("Yes.<|end|> And no.", ("Yes.\n\nAnd no.", "", [])),
    ("Ends with a mark <|en", ("Ends with a mark <|en", "", [])),
    ("<|channel|>final", ("", "", [])),
    ("", ("", "", [])),
    ("<|channel|>strange<|message|>Yes.", ("Yes.", "", [])),
    ("<|channel|><|message|>Yes.", ("Yes.", "", [])),
    ("<|channel|>" + "x" * 900, ("<|channel|>" + "x" * 900, "", [])),
    ("<|channel|>final<|end|>Yes.", ("<|channel|>final\n\nYes.", "", [])),
    *((text, (text, "", [])) for text in (
        "<|channel|>commentary to=functions.strange <|constrain|>json<|message|>{}",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>[1]",
        '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": ',
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>no JSON",
        "<|channel|>commentary to=functions.add <|constrain|>json<|message|>",
        "<|channel|>analysis to=python code<|message|>print(1)",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [*ANSWERS, *ODD])
def test_an_answer_is_the_same_wherever_it_is_cut(text: str, expected: Read) -> None:
    for growing in (False, True) if (text, expected) in ANSWERS else (False,):
        for seed in range(12):
            found = read(text, Random(seed) if seed else None, replace(READING, growing=growing))
            assert found == expected


def test_random_marks_lose_no_token_and_do_not_depend_on_the_cuts() -> None:
    rng = Random(3)
    words = ["assistant", "analysis", "final", "commentary", " to=functions.add", " json", "{}", "a", " "]
    words += HARMONY_MARKS
    for _ in range(400):
        text = "".join(rng.choices(words, k=rng.randint(1, 14)))
        begun = rng.random() < 0.2
        reading = replace(READING, reasoning_begun=begun)
        whole = read(text, None, reading)
        assert read(text, rng, reading) == whole, text


def test_without_reasoning_the_analysis_is_text_and_without_tools_calls_are() -> None:
    plain = replace(READING, reasoning=None)
    assert read(THOUGHT + FINAL, None, plain) == ("They ask < 3 | 4.\n\nIt is <b>4</b>.", "", [])
    call = CALLS[0].removeprefix("<|start|>assistant").removesuffix("<|call|>")
    assert read("<|start|>assistant" + call, None, replace(READING, use=OfferedTools()))[2] == []
    assert read(THOUGHT + FINAL, None, AnswerFormat(tools=HERMES, reasoning=HARMONY_ANALYSIS)) == ANSWERS[0][1]


def test_a_prompt_that_ends_in_the_analysis_continues_it() -> None:
    begun = replace(READING, reasoning_begun=True)
    assert read("Hm.<|end|>" + FINAL, None, begun) == ("It is <b>4</b>.", "Hm.", [])


def test_arguments_grow_in_a_stream_behind_the_name_and_what_breaks_them_follows_as_text() -> None:
    reads, _ = reads_of(CALLS[0], replace(READING, growing=True))
    calls = [call for one in reads for call in one.calls]
    assert (calls[0].name, calls[0].later) == ("add", False) and len(calls) > 20
    broken = CALLS[0].replace("[1,", "[1 1,").removesuffix("<|call|>")
    reads, _ = reads_of(broken, replace(READING, growing=True))
    assert "".join(one.piece.text for one in reads).startswith("1, -2.5")


def test_tokens_of_reasoning_are_counted() -> None:
    _, reader = reads_of(THOUGHT + FINAL, READING)
    assert reader.reasoning_tokens == len(THOUGHT) - len("<|end|>") and reader.reasoning_end is not None


def test_the_template_of_the_model_tells_its_form() -> None:
    template = ChatTemplate(TEMPLATE, {})
    assert tool_support(template) == (HARMONY, None)
    assert reasoning_format(template) == HARMONY_ANALYSIS
    phi = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}", {})
    assert reasoning_format(phi) is None


def test_a_forced_call_is_written_in_the_form_that_is_read() -> None:
    added = {mark: 300 + at for at, mark in enumerate(HARMONY_MARKS)}
    offered = OfferedTools(TOOLS[:1], ToolMode.REQUIRED)
    form = call_form(TOOLS, offered, added, HARMONY)
    assert form is not None
    for part in ("<[303]>", "<[304]>", "<[302]>", "commentary to=functions.", "add "):
        assert part in form.grammar
    assert "<[306]>" not in form.grammar, "the token that ends the answer ends the grammar"
    free = OfferedTools(TOOLS[:1], ToolMode.AUTO)
    assert call_form(TOOLS, free, added, HARMONY) is None, "a grammar would forbid the other channels"
    assert read(HARMONY.opening + HARMONY.call("add") + TEXT + HARMONY.call_end + HARMONY.closing)[2]


@pytest.fixture
def folder(folder: Path) -> Path:
    """A model that writes in channels."""
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


async def test_reasoning_effort_reaches_the_template(folder: Path) -> None:
    assets = load_assets(folder, "tiny")
    assert (assets.tool_format, assets.reasoning) == (HARMONY, HARMONY_ANALYSIS)
    for effort, shown in ((None, "medium"), ("high", "high")):
        ids, reading = await encode_chat(assets, ChatPrompt(HI, reasoning_effort=effort), HTTP)
        assert text_of(assets, ids).startswith(f"<|start|>system<|message|>Reasoning: {shown}")
        assert reading.in_channels and not reading.reasoning_begun


def test_the_ends_of_the_format_end_the_answer(folder: Path) -> None:
    before = load_assets(folder, "tiny", tool_format="none", reasoning="none").eos_ids
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    taken = max(token["id"] for token in tokenizer["added_tokens"])
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    missing = [mark for mark in HARMONY_MARKS if mark != "<|end|>"]  # the folder's tokenizer has that one
    new = [{"id": taken + 1 + at, "content": mark} | common for at, mark in enumerate(missing)]
    change(folder / "tokenizer.json", added_tokens=[*tokenizer["added_tokens"], *new])
    change(folder / "config.json", vocab_size=taken + 1 + len(new))
    ends = {each["id"] for each in new if each["content"] in ("<|return|>", "<|call|>")}
    assert set(load_assets(folder, "tiny").eos_ids) == {*before, *ends}
    assert load_assets(folder, "tiny", tool_format="none", reasoning="none").eos_ids == before


async def test_chats_show_reasoning_content_and_calls(client: openai.AsyncOpenAI, core: Any, folder: Path) -> None:
    tools: Any = [{"type": "function", "function": {"name": "add"}}]
    core.reply = (THOUGHT + PREAMBLE + CALLS[0]).encode()
    whole = await client.chat.completions.create(model="tiny", messages=HI, tools=tools)
    choice: Any = whole.choices[0]
    assert (choice.message.content, choice.message.reasoning) == ("Let me look.", "They ask < 3 | 4.")
    assert json.loads(choice.message.tool_calls[0].function.arguments) == ARGUMENTS
    assert choice.finish_reason == "tool_calls"
    text = thought = arguments = ""
    async for chunk in await client.chat.completions.create(model="tiny", messages=HI, tools=tools, stream=True):
        delta: Any = chunk.choices[0].delta
        text += delta.content or ""
        thought += getattr(delta, "reasoning", None) or ""
        for call in delta.tool_calls or ():
            arguments += call.function.arguments or ""
    assert (text, thought, json.loads(arguments)) == ("Let me look.", "They ask < 3 | 4.", ARGUMENTS)


async def test_the_other_apis_show_them_too(url: str, core: Any, folder: Path) -> None:
    core.reply = (THOUGHT + CALLS[1]).encode()
    schema = {"type": "object", "properties": {}}
    asked: dict[str, Any] = {"model": "tiny", "max_output_tokens": 280, "input": "hi"}
    async with httpx2.AsyncClient(base_url=url) as client:
        tool: Any = {"type": "function", "name": "add", "parameters": schema}
        response = (await client.post("/v1/responses", json=asked | {"tools": [tool]})).json()
        messages: Any = {"model": "tiny", "max_tokens": 280, "messages": HI}
        tool = {"name": "add", "input_schema": schema}
        message = (await client.post("/v1/messages", json=messages | {"tools": [tool]})).json()
    kinds = {item["type"]: item for item in response["output"]}
    assert json.loads(kinds["function_call"]["arguments"]) == ARGUMENTS and "reasoning" in kinds
    blocks = {block["type"]: block for block in message["content"]}
    assert blocks["tool_use"]["input"] == ARGUMENTS and message["stop_reason"] == "tool_use"
    assert blocks["thinking"]["thinking"] == "They ask < 3 | 4."
