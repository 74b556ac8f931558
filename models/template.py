"""The chat template and its special tokens: how a conversation becomes one text, for training as for serving.

Tools are listed in the system prompt and called in the format of Hermes and Qwen: <tool_call>, a JSON object with name
and arguments, </tool_call>."""

from typing import Any

from gateway.text.chat import ChatTemplate

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SPECIAL = (BEGIN, END, PAD, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
VISIBLE = ("<tools>", "</tools>", "<tool_call>", "</tool_call>")  # one token each, and part of the text

CHAT_TEMPLATE = r"""
{{- bos_token }}
{%- set system = messages[0].content if messages and messages[0].role == 'system' else '' %}
{%- if system or tools %}
    {{- '<|system|>' + system }}
    {%- if tools %}
        {{- ('\n' if system else '') + 'You can call these tools:\n<tools>\n' }}
        {%- for tool in tools %}
            {{- (tool | tojson) + '\n' }}
        {%- endfor %}
        {{- '</tools>\nTo call one, write <tool_call> with its name and arguments.' }}
    {%- endif %}
    {{- eos_token }}
{%- endif %}
{%- for message in messages %}
    {%- if not (loop.first and message.role == 'system') %}
        {{- '<|' + message.role + '|>' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function if call.function else call %}
            {{- '<tool_call>\n{"name": ' + (call.name | tojson) + ', "arguments": ' }}
            {{- call.arguments if call.arguments is string else call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
""".strip()


class Template:
    """The gateway's own renderer over our template."""

    def __init__(self) -> None:
        self._template = ChatTemplate(CHAT_TEMPLATE, {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD})

    def render(self, messages: list[dict[str, Any]], tools: tuple[dict[str, Any], ...], *, ask: bool = False) -> str:
        """`ask`: the text ends where the assistant's answer begins."""
        arguments = {"tools": list(tools)} if tools else {}
        return self._template.render(messages, add_generation_prompt=ask, arguments=arguments)
