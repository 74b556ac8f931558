"""Roles that only some templates know, and results of tools without their call."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai.request import CHAT_FIELDS
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.text.chat import ChatTemplate
from mesh.errors import InvalidRequest
from tests.unit.gateway.byte_model import byte_tokenizer

USER = {"role": "user", "content": "hi"}
RESULT = {"role": "tool", "content": '{"a": "b"}'}
ONLY_CRITICS = (
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}"
    "{% elif m.role == 'critic' %}C:{{ m.content | tojson }}{% endif %}{% endfor %}"
)


def with_template(assets: Assets, source: str) -> Assets:
    return replace(assets, template=ChatTemplate(source, {}), templates={})


async def text_of(assets: Assets, messages: Sequence[Any]) -> str:
    ids, _ = await encode_chat(assets, ChatPrompt(messages), CHAT_FIELDS)
    return assets.tokenizer.decode(ids, skip_special=False)


async def refused(assets: Assets, *messages: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        await encode_chat(assets, ChatPrompt(messages), CHAT_FIELDS)
    return error.value


async def test_a_template_that_knows_a_role_gets_its_messages(assets: Assets) -> None:
    critic = {"role": "critic", "content": 'né "x"'}
    assert await text_of(with_template(assets, ONLY_CRITICS), [USER, critic]) == 'U:hiC:"né \\"x\\""'
    assert await text_of(assets, [{"role": "document 1", "content": "a"}]) == "<|document 1|>a<|end|><|assistant|>"


async def test_a_message_that_a_template_would_leave_out_is_refused_by_its_role(assets: Assets) -> None:
    knows = with_template(assets, ONLY_CRITICS)
    for message in ({"role": "judge", "content": "hi"}, RESULT):
        error = await refused(knows, USER, {"role": "critic", "content": "hi"}, message)
        assert error.field == "messages[2].role" and "leaves such a message out" in error.message
    assert await text_of(knows, [USER, {"role": "system", "content": "left out as ever"}]) == "U:hi"


async def test_a_template_that_refuses_a_role_gives_its_reason(assets: Assets) -> None:
    strict = with_template(assets, "{{ raise_exception('only users, not ' ~ messages[0].role) }}")
    error = await refused(strict, {"role": "critic", "content": "x"})
    assert error.field == "messages" and "only users, not critic" in error.message


@pytest.mark.parametrize("role", ["end", "End", "a<b", "<|user|>", " x", "x" * 65, "é", ""])
async def test_a_role_cannot_become_a_token_that_ends_a_turn(assets: Assets, role: str) -> None:
    assert (await refused(assets, USER, {"role": role, "content": "x"})).field == "messages[1].role"


async def test_a_role_that_is_the_name_of_a_control_token_is_refused_with_what_to_do(folder: Path) -> None:
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{# <|handoff|> <tool_call> #}"
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|handoff|>", "[INST]"])
    tokenizer.add_tokens(["<tool_call>", "<plain>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    model = load_assets(folder, "tiny")
    for role in ("tool_call", "handoff", "inst", "User"):
        error = await refused(model, USER, {"role": role, "content": "x"})
        assert error.field == "messages[1].role" and "take another name" in error.message, role
    assert await text_of(model, [USER, {"role": "plain", "content": "x"}]) == "<user>hi<plain>x"  # no control token
    named = with_template(model, "{% for m in messages if m.role != 'handoff' %}{% endfor %}" + template)
    assert await text_of(named, [{"role": "handoff", "content": "x"}]) == "<handoff>x"
    assert (await refused(named, {"role": "end", "content": "x"})).field == "messages[0].role"


async def test_a_result_needs_neither_a_call_nor_its_id(assets: Assets) -> None:
    expected = '<|tool|>{"a": "b"}<|end|><|assistant|>'
    for more in ({}, {"tool_call_id": "c9"}, {"tool_call_id": None}):
        assert await text_of(assets, [RESULT | more]) == expected
    assert (await refused(assets, RESULT | {"tool_call_id": 9})).field == "messages[0].tool_call_id"
