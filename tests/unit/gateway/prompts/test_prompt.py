"""Prompts of both front doors become the same token ids, and their errors spell fields as the front door does."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from gateway.dialects.openai import request as openai_request
from gateway.grpc import conversation as grpc_conversation
from gateway.prompts.assets import Assets
from gateway.prompts.prompt import LONG_CHARACTERS, LONG_CHAT, ChatPrompt, encode_chat, encode_text
from gateway.prompts.truncation import Truncation, encode_cut
from gateway.text.chat import ChatTemplate
from gateway.text.tool_calls import PLAIN
from gateway.text.tools import ChatFields
from mesh.errors import BatonError, ContextTooLong

HTTP, GRPC = openai_request.CHAT_FIELDS, grpc_conversation.CHAT_FIELDS
USER = {"role": "user", "content": "hi"}


def calling(function: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}


async def test_both_spellings_give_the_same_ids(assets: Assets) -> None:
    encoded = [await encode_chat(assets, ChatPrompt([USER]), fields) for fields in (HTTP, GRPC)]
    assert encoded == [((258, *b"hi", 257, 259), PLAIN)] * 2


@pytest.mark.parametrize(
    ("chat", "http", "grpc"),
    [
        (ChatPrompt([]), "messages", "chat.messages"),
        (ChatPrompt([{"role": "<stranger>"}]), "messages[0].role", "chat.messages[0].role"),
        (ChatPrompt([USER, {"role": "user"}]), "messages[1].content", "chat.messages[1].content"),
        (ChatPrompt([USER] * 513), "messages", "chat.messages"),
        (ChatPrompt([{"role": "user", "content": "x" * 999_999}]), "messages", "chat.messages"),
        (
            ChatPrompt([USER], template_arguments={"tools": []}),
            "chat_template_kwargs",
            "chat.template_arguments_json",
        ),
        (ChatPrompt([USER], tools=[{"function": {"name": "f"}}]), "tools", "chat.tools"),
        (ChatPrompt([USER], tools=[{"function": {"name": "a b"}}]), "tools[0].function.name", "chat.tools[0].name"),
        (
            ChatPrompt([USER], tools=[{"function": {"name": "f", "parameters": []}}]),
            "tools[0].function.parameters",
            "chat.tools[0].parameters_json",
        ),
        (
            ChatPrompt([calling({})]),
            "messages[0].tool_calls[0].function.name",
            "chat.messages[0].tool_calls[0].name",
        ),
        (
            ChatPrompt([calling({"name": "f", "arguments": "["})]),
            "messages[0].tool_calls[0].function.arguments",
            "chat.messages[0].tool_calls[0].arguments_json",
        ),
        (
            ChatPrompt([{"role": "tool", "content": "2", "tool_call_id": 3}]),
            "messages[0].tool_call_id",
            "chat.messages[0].tool_call_id",
        ),
    ],
)
async def test_an_error_spells_its_field_as_the_front_door_does(
    assets: Assets, chat: ChatPrompt, http: str, grpc: str
) -> None:
    for fields, expected in ((HTTP, http), (GRPC, grpc)):
        with pytest.raises(BatonError) as refused:
            await encode_chat(assets, chat, fields)
        assert refused.value.field == expected and expected in refused.value.message


@pytest.mark.parametrize("fields", [HTTP, GRPC])
async def test_an_error_of_the_template_names_the_messages(assets: Assets, fields: ChatFields) -> None:
    refusing = replace(assets, template=ChatTemplate("{{ raise_exception('no system role') }}", {}))
    with pytest.raises(BatonError, match="no system role") as refused:
        await encode_chat(refusing, ChatPrompt([USER]), fields)
    assert refused.value.field == fields.messages


async def test_long_texts_are_tokenized_off_the_event_loop(assets: Assets, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def encode(self: Any, text: str, *, special: bool) -> tuple[int, ...]:
        threads.append(threading.current_thread() is threading.main_thread())
        return (5,)

    monkeypatch.setattr(type(assets.tokenizer), "encode", encode)
    monkeypatch.setattr(type(assets.tokenizer), "most_characters", lambda self, tokens: 2 * LONG_CHARACTERS)
    for length in (LONG_CHARACTERS - 1, LONG_CHARACTERS):
        await encode_text(assets, "x" * length, field="text", special=True)
    assert threads == [True, False]


@pytest.mark.parametrize("keep_end", [True, False])
async def test_a_text_of_many_contexts_is_cut_where_its_client_wants_that(assets: Assets, keep_end: bool) -> None:
    dense = replace(assets, context_tokens=LONG_CHARACTERS // 10)
    text = "x" * (LONG_CHARACTERS - 4) + "yzyz"
    with pytest.raises(ContextTooLong, match="alone have about"):
        await encode_text(dense, text, field="prompt", special=False)
    ids = await encode_cut(dense, text, Truncation(3, keep_end), field="prompt", special=True)
    assert ids == dense.tokenizer.encode("zyz" if keep_end else "xxx", special=True)


async def test_long_chats_are_rendered_off_the_event_loop(assets: Assets, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []

    def render(self: Any, messages: Any, **arguments: Any) -> str:
        threads.append(threading.current_thread() is threading.main_thread())
        return "x"

    monkeypatch.setattr(type(assets.template), "render", render)
    for length in (LONG_CHAT, LONG_CHAT + 1):
        await encode_chat(assets, ChatPrompt([USER] * length), HTTP)
    assert threads == [True, False]


async def test_a_developer_speaks_as_the_system_unless_the_template_knows_developers(assets: Assets) -> None:
    spoken = "{% for message in messages %}[{{ message.role }}]{% endfor %}"
    knowing = "{% if false %}developer{% endif %}" + spoken
    chat = ChatPrompt([{"role": "developer", "content": "Be brief."}, USER])
    for source, expected in ((spoken, b"[system][user]"), (knowing, b"[developer][user]")):
        ids, _ = await encode_chat(replace(assets, template=ChatTemplate(source, {})), chat, HTTP)
        assert bytes(ids) == expected
