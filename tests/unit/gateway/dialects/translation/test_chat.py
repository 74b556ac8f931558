"""Chat templates render as transformers renders them, and reach nothing outside their sandbox."""

import datetime
from typing import Any

import jinja2
import pytest

from gateway.text.chat import ChatTemplate
from mesh.errors import InvalidRequest

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & 'kind'."},
    {"role": "user", "content": "Grüße, 漢"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "go"},
]
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}\n"
        "    {%- if loop.index0 == 2 %}{% generation %}{{ message.content }}{% endgeneration %}{% continue %}"
        "{% endif %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>' }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    ),
    "special": (
        "{{ bos_token }}{% for m in messages if m.role != 'system' %}[{{ m.content }}]{{ eos_token }}{% endfor %}"
    ),
    "json": "{{ messages | tojson }}{{ messages[0] | tojson(indent=2) }}{% if tools is none %}no tools{% endif %}",
    "macros": (
        "{% macro one(m) %}{{ m.role | upper }}: {{ m.content }}\n{% endmacro %}"
        "{% set ns = namespace(count=0) %}"
        "{% for m in messages %}{% set ns.count = ns.count + 1 %}{{ one(m) }}{% endfor %}"
        "{{ ns.count }} {{ enable_thinking | default(true) }}"
    ),
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generation", [True, False])
def test_a_template_renders_as_transformers_renders_it(name: str, generation: bool) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    arguments = {"enable_thinking": False}
    (expected,), _ = render_jinja_template(
        [MESSAGES],
        chat_template=TEMPLATES[name],
        add_generation_prompt=generation,
        **SPECIAL,
        **arguments,
    )
    ours = ChatTemplate(TEMPLATES[name], SPECIAL).render(
        MESSAGES, add_generation_prompt=generation, arguments=arguments
    )
    assert ours == expected
    assert "Gr" in ours


def test_an_exception_of_a_template_is_an_error_of_the_clients_messages() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        template.render(MESSAGES)
    assert refused.value.field == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].tool_calls[0].name }}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content + 1 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot render"):
        ChatTemplate(source, {}).render(MESSAGES)


def test_time_is_there_only_when_a_clock_was_handed_in() -> None:
    source = "{{ strftime_now('%Y') }}"
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}).render(MESSAGES)
    clock = lambda: datetime.datetime(2031, 5, 1)  # noqa: E731
    assert ChatTemplate(source, {}, clock).render(MESSAGES) == "2031"


def test_a_broken_template_is_an_error_at_start() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        ChatTemplate("{% for %}", {})
