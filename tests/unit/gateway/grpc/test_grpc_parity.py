"""A request has the same meaning over HTTP and over gRPC: each field reaches the core through both doors alike."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from tokenizers.processors import TemplateProcessing

from baton.inference.v1 import inference_pb2 as pb
from tests.unit.gateway.byte_model import byte_tokenizer
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.grpc_page import NONE, names, rows
from tests.unit.gateway.public_grpc import RICH_TEMPLATE

# ---- both doors

PARAMETERS: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": PARAMETERS}}
SUB: Any = {"type": "function", "function": {"name": "sub", "parameters": PARAMETERS}}
G_ADD: Any = {"name": "add", "description": "adds", "parameters_json": json.dumps(PARAMETERS)}
G_SUB: Any = {"name": "sub", "parameters_json": json.dumps(PARAMETERS)}
ALLOWED: Any = {"mode": "required", "tools": [{"type": "function", "function": {"name": "sub"}}]}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
EARLIER: Any = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "b",
        "reasoning": "so",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}],
    },
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
]
G_EARLIER: Any = [
    {"role": "user", "content": "a"},
    {
        "role": "assistant",
        "content": "b",
        "reasoning": "so",
        "tool_calls": [{"id": "c1", "name": "add", "arguments_json": '{"a": 2}'}],
    },
    {"role": "tool", "content": "3", "tool_call_id": "c1"},
]
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def alike(*fields: str, **values: Any) -> dict[str, tuple[Any, Any]]:
    """Samples whose field stands in one message of gRPC under the name that it has over HTTP."""
    place = fields[0]
    return {name: ({name: value}, {place: {name: value}} if place else {name: value}) for name, value in values.items()}


COMPLETIONS: dict[str, tuple[Any, Any]] = {
    **alike("", model="tiny", cache_salt="s", priority=3, request_id="r1", allow_class_change=True),
    **alike("", skip_special_tokens=False, add_special_tokens=False, truncate_prompt_tokens=2, prompt_logprobs=2),
    **alike("sampling", n=2, best_of=3, temperature=0.5, top_p=0.5, top_k=3, min_p=0.25, seed=9),
    **alike("sampling", frequency_penalty=0.5, presence_penalty=0.5, repetition_penalty=1.5, bad_words=["wor"]),
    **alike("stop", max_tokens=3, min_tokens=2),
    "ignore_eos": (
        {"ignore_eos": True, "max_tokens": 4},
        {"stop": {"ignore_eos": True, "max_tokens": 4}},
    ),
    "numerics_class": (
        {"numerics_class": {"name": "path=fp32", "fingerprint": "f00d"}},
        {"numerics_class": {"name": "path=fp32", "fingerprint": "f00d"}},
    ),
    "prompt": ({"prompt": [1, 2]}, {"token_ids": {"ids": [1, 2]}}),
    "logit_bias": ({"logit_bias": {"7": 1.5}}, {"sampling": {"logit_bias": {7: 1.5}}}),
    "allowed_token_ids": ({"allowed_token_ids": [104, 257]}, {"sampling": {"allowed_token_ids": {"ids": [104, 257]}}}),
    "max_completion_tokens": ({"max_completion_tokens": 3}, {"stop": {"max_tokens": 3}}),
    "stop": ({"stop": ["lo"]}, {"stop": {"strings": ["lo"]}}),
    "stop_token_ids": ({"stop_token_ids": [111]}, {"stop": {"token_ids": [111]}}),
    "include_stop_str_in_output": (
        {"stop": "lo", "include_stop_str_in_output": True},
        {"stop": {"strings": ["lo"], "include_stop_string": True}},
    ),
    "truncation_side": (
        {"truncate_prompt_tokens": 2, "truncation_side": "right"},
        {"truncate_prompt_tokens": 2, "truncation_side": pb.TRUNCATION_SIDE_RIGHT},
    ),
    "truncate_prompt_tokens -1": ({"truncate_prompt_tokens": -1, "max_tokens": 509}, {"truncate_prompt_tokens": -1}),
    "logprobs": ({"logprobs": 2}, {"logprobs": {"top": 2}}),
    "logprob_token_ids": (
        {"logprobs": 0, "logprob_token_ids": [104, 7]},
        {"logprobs": {"token_ids": [104, 7]}},
    ),
    "return_token_ids": ({"return_token_ids": True}, {"return_prompt_token_ids": True}),
    "thinking_token_budget": ({"thinking_token_budget": 3}, {"sampling": {"thinking_token_budget": 3}}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {"affinity_key": "k"}),
    "session_id": ({"session_id": "k"}, {"affinity_key": "k"}),
    "response_format": ({"response_format": {"type": "json_object"}}, {"structured_output": {"json_object": True}}),
    "structured_outputs": (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        {"structured_output": {"json_schema": json.dumps(SCHEMA), "whitespace_pattern": " "}},
    ),
    "structured_outputs without space": (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        {"structured_output": {"json_schema": json.dumps(SCHEMA), "disable_any_whitespace": True}},
    ),
}
COMPLETIONS["truncate_prompt_tokens -1"][1]["stop"] = {"max_tokens": 509}
TOOLS: Any = {"tools": [ADD, SUB]}
G_TOOLS: Any = {"tools": [G_ADD, G_SUB]}
CHATS: dict[str, tuple[Any, Any]] = {
    "messages": ({"messages": EARLIER}, {"chat": {"messages": G_EARLIER}}),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, {"logprobs": {"top": 2}}),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"shout": True}},
        {"chat": {"template_arguments_json": '{"shout": true}'}},
    ),
    "add_generation_prompt": ({"add_generation_prompt": False}, {"chat": {"add_generation_prompt": False}}),
    "continue_final_message": (
        {"messages": EARLIER[:2], "continue_final_message": True},
        {"chat": {"messages": G_EARLIER[:2], "continue_final_message": True}},
    ),
    "reasoning_effort": ({"reasoning_effort": "low"}, {"chat": {"reasoning_effort": "low"}}),
    "include_reasoning": ({"include_reasoning": False}, {"include_reasoning": False}),
    "chat_template": ({"chat_template": "short"}, {"chat": {"template": "short"}}),
    "documents": ({"documents": [{"text": "d"}]}, {"chat": {"documents_json": ['{"text": "d"}']}}),
    "tools": (TOOLS, {"chat": G_TOOLS}),
    "tools, strict": (
        {"tools": [{"type": "function", "function": {**ADD["function"], "strict": True}}]},
        {"chat": {"tools": [{**G_ADD, "strict": True}]}},
    ),
    "tool_choice none": (
        {**TOOLS, "tool_choice": "none"},
        {"chat": {**G_TOOLS, "tool_choice": {"mode": pb.TOOL_MODE_NONE}}},
    ),
    "tool_choice": (
        {**TOOLS, "tool_choice": "required"},
        {"chat": {**G_TOOLS, "tool_choice": {"mode": pb.TOOL_MODE_REQUIRED}}},
    ),
    "tool_choice named": (
        {**TOOLS, "tool_choice": {"type": "function", "function": {"name": "add"}}},
        {"chat": {**G_TOOLS, "tool_choice": {"name": "add"}}},
    ),
    "tool_choice allowed": (
        {**TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED}},
        {
            "chat": {
                **G_TOOLS,
                "tool_choice": {"allowed_tools": {"mode": pb.TOOL_MODE_REQUIRED, "names": ["sub"]}},
            }
        },
    ),
    "parallel_tool_calls": (
        {**TOOLS, "parallel_tool_calls": False},
        {"chat": {**G_TOOLS, "parallel_tool_calls": False}},
    ),
    "add_special_tokens in a chat": ({"add_special_tokens": True}, {"add_special_tokens": True}),
    "truncate_prompt_tokens in a chat": ({"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": 3}),
}
SAME = {"model", "return_token_ids", "request_id", "tool_choice none"}  # they change neither a choice nor its text


@pytest.fixture
def folder(folder: Path) -> Path:
    """A model with special tokens around a text, tools, reasoning and a second template."""
    tokenizer = byte_tokenizer()
    tokenizer.post_processor = TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 256)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(RICH_TEMPLATE)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates/short.jinja").write_text("{{ messages[-1].content }}")
    return folder


@pytest.fixture
def core() -> FakeCore:
    def reply(choice: Any) -> Any:
        thought = b"<think>\nHm.\n</think>\n\n" if "messages" in choice.prompt_field else b""
        return [*thought, *b"hello ", 258, *b"world ", *CALL.encode(), *CALL.encode()]

    return FakeCore(reply=reply)


def seen(core: FakeCore) -> list[Any]:
    """The choices that the core got, without what names them."""
    spelled = dict.fromkeys(("request_id", "prompt_field", "max_tokens_field", "grammar_field"), "")
    asked = [each.choice for each in (*core.streams, *core.examinations)]
    core.streams.clear()
    core.examinations.clear()
    return [replace(choice, **spelled) for choice in asked]


SAMPLES = [(kind, name) for kind, some in (("completions", COMPLETIONS), ("chat", CHATS)) for name in some]


async def over_http(url: str, core: FakeCore, kind: str, more: Any) -> tuple[Any, ...]:
    base = {"prompt": "abc"} if kind == "completions" else {"messages": [{"role": "user", "content": "hi"}]}
    path = "completions" if kind == "completions" else "chat/completions"
    async with httpx.AsyncClient(timeout=None) as client:
        answer = (await client.post(f"{url}/v1/{path}", json={"seed": 5, **base, **more})).json()
    assert "choices" in answer, answer
    found = list[Any]()
    for choice in answer["choices"]:
        message = choice.get("message", {})
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls") or ()
        ]
        text = choice.get("text", message.get("content")) or ""
        found.append((text, message.get("reasoning", ""), calls, choice["finish_reason"]))
    return seen(core), found, answer["usage"]["prompt_tokens"]


async def over_grpc(stub: Any, core: FakeCore, kind: str, more: Any) -> tuple[Any, ...]:
    request = pb.GenerateRequest(sampling={"seed": 5})
    if kind == "completions" and "token_ids" not in more:
        request.text = "abc"
    elif kind == "chat" and "messages" not in more.get("chat", {}):
        request.chat.messages.add(role="user", content="hi")
    request.MergeFrom(pb.GenerateRequest(**more))
    answer = await stub.Generate(request)
    found = [
        (
            choice.text,
            choice.reasoning,
            [(call.name, json.loads(call.arguments_json)) for call in choice.tool_calls],
            pb.FinishReason.Name(choice.finished.reason).removeprefix("FINISH_REASON_").lower(),
        )
        for choice in answer.choices
    ]
    return seen(core), found, answer.finished.usage.prompt_tokens


@pytest.mark.parametrize(("kind", "name"), SAMPLES)
async def test_a_field_does_the_same_through_both_doors(
    url: str, stub: Any, core: FakeCore, kind: str, name: str
) -> None:
    http, grpc = (COMPLETIONS if kind == "completions" else CHATS)[name]
    plain = await over_http(url, core, kind, {})
    assert await over_grpc(stub, core, kind, {}) == plain
    through_http = await over_http(url, core, kind, http)
    assert await over_grpc(stub, core, kind, grpc) == through_http
    assert (through_http == plain) == (name in SAME), "the sample shows what the field does"


def test_every_field_that_both_doors_have_is_sent_through_both() -> None:
    sent = {re.split(r"[ ,]", name)[0] for name in (*COMPLETIONS, *CHATS)}
    both = {name for row in rows("Requests") if row[1] != NONE for name in names(row[0])}
    elsewhere = {"input", "dimensions", "stream_options.continuous_usage_stats", "receipt"}  # in tests of their own
    assert both - elsewhere == sent
