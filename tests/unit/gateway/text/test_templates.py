"""Templates by name, templates of clients, and what a request may say about rendering."""

import asyncio
import datetime
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.fairness.client_turns import WHOSE
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.prompt import ChatPrompt, encode_chat
from gateway.text.chat import ChatTemplate
from gateway.text.client_template import LONGEST, ClientTemplates
from gateway.text.formats import HERMES, LLAMA3, MISTRAL, MISTRAL_THINK, THINK, reasoning_format
from gateway.text.tools import tool_support
from mesh.errors import BatonError, InvalidRequest
from tests.unit.gateway.prompts.test_assets import change
from tests.unit.gateway.prompts.test_prompt import HTTP

HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"type": "function", "function": {"name": "f"}}
QWEN3 = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA31 = (
    "{{ bos_token }}{% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% else %}{% if tools %}{{ tools | tojson }}{% endif %}{{ m.content | trim }}{% endif %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL7 = (
    "{{ bos_token }}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% elif m.tool_calls %}"
    "[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% endfor %}]{{ eos_token }}{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)


def text_of(assets: Assets, ids: tuple[int, ...]) -> str:
    return assets.tokenizer.decode(ids, skip_special=False)


@pytest.mark.parametrize(
    ("source", "form", "reasoning"),
    [
        (QWEN3, HERMES, THINK),
        (LLAMA31, LLAMA3, None),
        (MISTRAL7, MISTRAL, None),
        (
            "{% for m in messages %}[THINK]{{ m.reasoning_content }}[/THINK]{{ m.content }}{% endfor %}",
            None,
            MISTRAL_THINK,
        ),
        ("{% for m in messages %}{{ m.content }}{% endfor %}<think>\n", None, THINK),
    ],
)
def test_a_template_tells_how_its_model_writes(source: str, form: Any, reasoning: Any) -> None:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    assert tool_support(template)[0] == form
    assert reasoning_format(template) == reasoning


def test_settings_choose_the_forms(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(QWEN3)
    assert load_assets(folder, "tiny").tool_format == HERMES
    chosen = load_assets(folder, "tiny", tool_format="mistral", reasoning="none")
    assert (chosen.tool_format, chosen.reasoning) == (MISTRAL, None)
    refused = load_assets(folder, "tiny", tool_format="none")
    assert (refused.tool_format, refused.why_no_tools) == (None, "the setting tool_format is none")


@pytest.mark.parametrize("files", [False, True])
async def test_chats_with_tools_take_the_template_for_tools(folder: Path, files: bool) -> None:
    tool_use = QWEN3.replace("<|im_start|>", "T:")
    if files:
        (folder / "chat_template.jinja").write_text("plain")
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates/tool_use.jinja").write_text(tool_use)
        (folder / "additional_chat_templates/rag.jinja").write_text("{{ documents[0].text }}")
    else:
        named = {"default": "plain", "tool_use": tool_use, "rag": "{{ documents[0].text }}"}
        change(
            folder / "tokenizer_config.json",
            chat_template=[{"name": name, "template": source} for name, source in named.items()],
        )
    assets = load_assets(folder, "tiny")
    assert assets.tool_format == HERMES
    prompts = [
        ChatPrompt(HI),
        ChatPrompt(HI, tools=[TOOL]),
        ChatPrompt(HI, tools=[TOOL], tool_choice="none"),
        ChatPrompt(HI, template="rag", documents=[{"text": "found"}]),
    ]
    texts = [text_of(assets, (await encode_chat(assets, prompt, HTTP))[0]) for prompt in prompts]
    assert [texts[0], texts[2], texts[3]] == ["plain", "plain", "found"]
    assert "T:user" in texts[1]


async def test_a_template_sees_the_clock_that_was_handed_in(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text(LLAMA31)
    assets = load_assets(folder, "tiny", lambda: datetime.datetime(2031, 5, 1))
    ids, _ = await encode_chat(assets, ChatPrompt(HI), HTTP)
    assert "01 May 2031" in text_of(assets, ids)


@pytest.mark.parametrize(
    ("effort", "arguments", "shown"),
    [(None, {}, False), ("low", {}, False), ("none", {}, True), ("none", {"enable_thinking": True}, False)],
)
async def test_reasoning_effort_switches_reasoning_where_the_template_can(
    folder: Path, effort: str | None, arguments: Any, shown: bool
) -> None:
    (folder / "chat_template.jinja").write_text(QWEN3)
    assets = load_assets(folder, "tiny")
    chat = ChatPrompt(HI, template_arguments=arguments, reasoning_effort=effort)
    ids, reading = await encode_chat(assets, chat, HTTP)
    assert text_of(assets, ids).endswith("</think>\n\n") is shown
    assert not reading.reasoning_begun


async def test_a_prompt_that_opens_the_reasoning_is_noticed_and_a_user_cannot_open_it(folder: Path) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}</think><think>\n{% endif %}"
    )
    (folder / "chat_template.jinja").write_text(source)
    assets = load_assets(folder, "tiny")
    assert (await encode_chat(assets, ChatPrompt(HI), HTTP))[1].reasoning_begun


@pytest.mark.parametrize("content", ["half an ans", "half an ans  ", "a < b <|end"])
@pytest.mark.parametrize("trim", ["", " | trim"])
async def test_the_last_message_is_continued_as_transformers_does(folder: Path, content: str, trim: str) -> None:
    from transformers import PreTrainedTokenizerFast

    source = f"{{% for m in messages %}}<|{{{{ m.role }}}}|>{{{{ m.content{trim} }}}}<|end|>{{% endfor %}}"
    (folder / "chat_template.jinja").write_text(source)
    assets = load_assets(folder, "tiny")
    messages: Any = [*HI, {"role": "assistant", "content": content}]
    ids, _ = await encode_chat(assets, ChatPrompt(messages, continue_final_message=True), HTTP)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=source)
    assert text_of(assets, ids) == theirs.apply_chat_template(messages, tokenize=False, continue_final_message=True)


async def test_what_cannot_be_continued_is_refused(client: openai.AsyncOpenAI, core: Any) -> None:
    both: Any = {"continue_final_message": True, "add_generation_prompt": True}
    for extra, messages, field in (
        (both, HI, "continue_final_message"),
        ({"continue_final_message": True}, [*HI, {"role": "assistant", "tool_calls": []}], "messages[1].content"),
        ({"documents": ["x"]}, HI, "documents[0]"),
        ({"chat_template": "x" * (LONGEST + 1)}, HI, "chat_template"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="tiny", messages=messages, extra_body=extra)
        assert refused.value.param == field
    assert core.streams == []


async def test_a_client_may_send_its_own_template(client: openai.AsyncOpenAI, core: Any) -> None:
    own = "{{ bos_token }}{% for m in messages %}{{ m.content }}!{% endfor %}<|assistant|>{{ word }}"
    extra = {"chat_template": own, "chat_template_kwargs": {"word": "so<|end|>"}}
    await client.chat.completions.create(model="tiny", messages=HI, extra_body=extra)
    assert core.streams[0].choice.prompt == (256, *b"hi!", 259, *b"so<|end|>")


async def test_templates_of_clients_can_be_switched_off(assets: Assets) -> None:
    off = replace(assets, client_templates=None)
    with pytest.raises(InvalidRequest, match="renders no templates of clients") as refused:
        await encode_chat(off, ChatPrompt(HI, template="{{ 1 }}"), HTTP)
    assert refused.value.field == "chat_template"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "too much time"),
        (
            "{% set ns = namespace(x='x' * 999) %}{% for i in range(99) %}{% set ns.x = ns.x * 9 %}{% endfor %}",
            "too much",
        ),
        ("{{ 'x' * (2 ** 33) }}", "too much"),
        ("{{ 9 ** (9 ** 9) }}", "too much time"),
        ("{{ '%900000000d' % 1 }}", "too much"),
        ("{% for %}", "cannot render"),
        ("{{ raise_exception('no') }}", "refuses messages: no"),
        ("{{ ''.__class__.__mro__ }}", "cannot render"),
        ("", "chat_template is empty"),
        ("{% import 'x' as x %}", "cannot render"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot render"),
    ],
)
async def test_a_hostile_template_is_refused_and_nothing_waits_for_it(source: str, problem: str) -> None:
    templates = ClientTemplates()
    with pytest.raises(BatonError, match=problem) as refused:
        await templates.render(source, {}, longest=10_000)
    assert refused.value.field == "chat_template"


async def test_one_client_cannot_keep_the_templates_of_others_waiting() -> None:
    """Turns go round, whoever asked first: without that the other one would come last."""
    templates, order = ClientTemplates(), list[str]()

    async def ask(whose: str) -> None:
        WHOSE.set(whose)
        with suppress(InvalidRequest):
            await templates.render("{% for i in range(10**9) %}{% endfor %}" if whose == "many" else "a", {}, longest=9)
        order.append(whose)

    await asyncio.gather(*(ask("many") for _ in range(6)), ask("other"))
    assert "other" in order[:5]


async def test_a_template_sees_variables_and_time_but_no_files() -> None:
    templates = ClientTemplates(lambda: datetime.datetime(2031, 5, 1))
    text = await templates.render("{{ strftime_now('%Y') }} {{ x | tojson }} {{ 'é' }}", {"x": {"a": "漢"}}, longest=99)
    assert text == f"2031 {json.dumps({'a': '漢'}, ensure_ascii=False)} é"
    for filtered in (
        "'a b' | wordwrap(2)",
        "'<b>a</b>' | striptags",
        "lipsum(n=1) | length",
        "'a' | urlize",
        "[1] | pprint",
    ):
        assert await templates.render(f"{{{{ {filtered} }}}}", {}, longest=999), "what a filter loads is loaded before"
    with pytest.raises(BatonError, match="cannot render"):
        await templates.render("{% include 'x' %}", {}, longest=99)


async def test_a_null_is_no_field(folder: Path) -> None:
    source = "{% for m in messages %}{{ m | length }}{{ 'tool_calls' in m }}{{ m.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(source)
    assets = load_assets(folder, "tiny")
    for nulls in ({"tool_calls": None, "refusal": None, "reasoning": None}, {"tool_calls": []}):
        ids, _ = await encode_chat(assets, ChatPrompt([{"role": "assistant", "content": "b"} | nulls]), HTTP)
        assert text_of(assets, ids) == "2Falseb"


async def test_reasoning_comes_and_goes_under_both_names(folder: Path, core: Any) -> None:
    (folder / "chat_template.jinja").write_text(QWEN3)
    assets = load_assets(folder, "tiny")
    for name in ("reasoning", "reasoning_content"):
        message = {"role": "assistant", "content": "b", name: "because"}
        ids, _ = await encode_chat(assets, ChatPrompt([*HI, message]), HTTP)
        assert "<think>\nbecause\n</think>\n\nb" in text_of(assets, ids)
    with pytest.raises(InvalidRequest) as refused:
        await encode_chat(assets, ChatPrompt([*HI, {"role": "assistant", "content": "b", "reasoning": 1}]), HTTP)
    assert refused.value.field == "messages[1].reasoning"


class TestReasoning:
    @pytest.fixture
    def folder(self, folder: Path) -> Path:
        """A model that reasons."""
        (folder / "chat_template.jinja").write_text(QWEN3)
        return folder

    async def test_it_leaves_beside_the_answer(self, client: openai.AsyncOpenAI, core: Any) -> None:
        core.reply = b"<think>\nHm.\n</think>\n\nYes."
        whole = await client.chat.completions.create(model="tiny", messages=HI)
        message: Any = whole.choices[0].message
        assert (message.content, message.reasoning, message.reasoning_content) == ("Yes.", "Hm.", "Hm.")
        assert whole.usage is not None and whole.usage.completion_tokens_details is not None
        assert whole.usage.completion_tokens_details.reasoning_tokens == len("<think>\nHm.\n</think>")
        text, reasoning = "", {"reasoning": "", "reasoning_content": ""}
        async for chunk in await client.chat.completions.create(model="tiny", messages=HI, stream=True):
            delta: Any = chunk.choices[0].delta
            text += delta.content or ""
            for name in reasoning:
                reasoning[name] += getattr(delta, name, None) or ""
        assert (text, reasoning) == ("Yes.", {"reasoning": "Hm.", "reasoning_content": "Hm."})

    async def test_it_stays_away_if_it_is_not_wanted(self, client: openai.AsyncOpenAI, core: Any) -> None:
        core.reply = b"<think>Hm.</think>Yes."
        extra = {"include_reasoning": False}
        whole = await client.chat.completions.create(model="tiny", messages=HI, extra_body=extra)
        assert whole.choices[0].message.content == "Yes." and "Hm" not in whole.model_dump_json()
        async for chunk in await client.chat.completions.create(
            model="tiny", messages=HI, extra_body=extra, stream=True
        ):
            assert "Hm" not in chunk.model_dump_json()
