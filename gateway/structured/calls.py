"""`tool_choice` and strict tools as a grammar that writes calls in the form of the model's template.

Step 1 of a request's life. `required` and a named tool force a call. With `auto` the model decides, but where a tool is
`strict`, or only some tools are allowed, a call that it begins must name an allowed tool, and the arguments of a strict
one follow its schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.structured.forms import Added, Form, lark, literal, pieces, sequence, triggered
from gateway.structured.schema import json_grammar, why_unsupported
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
MODES = ("none", "auto", "required")


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a model writes a call: `begin`, a JSON object with name and arguments, `end`."""

    begin: str = "<tool_call>\n"
    end: str = "\n</tool_call>"
    name: str = "name"  # key of the tool's name
    arguments: str = "arguments"  # key of its arguments
    opening: str = ""  # before the first call
    between: str = "\n"  # between two calls
    closing: str = ""  # behind the last call


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: str  # one of MODES
    names: frozenset[str]  # tools that the model may call
    named: bool = False  # the client names the one tool to call
    restricted: bool = False  # some of the tools may not be called


def parse_tool_choice(
    choice: Any, names: Sequence[str], field: str = "tool_choice", tools: str = "tools"
) -> ToolChoice:
    everything = frozenset(names)
    if choice is None or choice in ("none", "auto"):
        return ToolChoice(choice or "auto", everything)
    if not names:
        raise InvalidRequest(field, f"{field} needs {tools}")
    if choice == "required":
        return ToolChoice("required", everything)
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "function":
        return ToolChoice("required", frozenset({_name(choice, everything, field, tools)}), named=True)
    if kind == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        mode, listed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
        path = f"{field}.allowed_tools"
        if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
            raise InvalidRequest(path, f'{path} must be {{"mode": "auto" or "required", "tools": [one or more]}}')
        allowed = frozenset(_name(tool, everything, f"{path}.tools[{at}]", tools) for at, tool in enumerate(listed))
        return ToolChoice(mode, allowed, restricted=allowed != everything)
    raise InvalidRequest(
        field, f'{field} must be one of {", ".join(MODES)}, {{"type": "function", …}} or {{"type": "allowed_tools", …}}'
    )


def _name(choice: Any, names: frozenset[str], field: str, tools: str) -> str:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or name not in names:
        shown = f" {brief(name)!r}" if isinstance(name, str) else ""
        raise InvalidRequest(
            f"{field}.function.name", f"{field}.function.name{shown} must be the name of one of {tools}"
        )
    return name


def call_form(
    tools: Sequence[Json],
    choice: ToolChoice,
    added: Added,
    *,
    parallel: bool = True,
    answer: Form | None = None,  # what the answer must be where it is no call
    call_format: CallFormat = CallFormat(),
    tools_field: str = "tools",
) -> Form | None:
    """The form of an answer that may or must call tools; None: the model is free. `tools` are valid ones."""
    if choice.mode == "none" or not tools:
        return answer
    strict = any(tool["function"].get("strict") for tool in tools)
    if choice.mode == "auto" and answer is None and not strict and not choice.restricted:
        return None
    calls = [
        _call(tool["function"], call_format, f"{tools_field}[{at}].function.parameters")
        for at, tool in enumerate(tools)
        if tool["function"]["name"] in choice.names
    ]
    several = parallel and not choice.named
    if choice.mode == "required":
        if answer is not None:
            raise InvalidRequest(answer.field, f"{answer.field} cannot be followed by an answer that must call a tool")
        return Form(
            "tool_choice",
            grammar=lark("\n".join(["start: calls", *_calls(calls, call_format, added, parallel=several)])),
        )
    if answer is None:
        trigger = (call_format.opening + call_format.begin).rstrip()
        rest = (call_format.opening + call_format.begin)[len(trigger) :]
        end = call_format.end + call_format.closing
        bodies = [sequence(rest, call, end, added) for call in calls]
        return Form(tools_field, grammar=lark(triggered({trigger: bodies}, added, most="*" if parallel else "?")))
    if not answer.json:
        raise InvalidRequest(answer.field, f"{answer.field} cannot be combined with {tools_field}")
    rules = [
        "start: answer | calls",
        f"answer: {answer.json}",
        *_calls(calls, call_format, added, parallel=several),
    ]
    return Form(answer.field, grammar=lark("\n".join(rules)))


def _calls(calls: Sequence[str], form: CallFormat, added: Added, *, parallel: bool) -> list[str]:
    more = f" ({' '.join((*pieces(form.between, added), 'call'))})*" if parallel else ""
    body = " | ".join(sequence(form.begin, call, form.end, added) for call in calls)
    return [f"calls: {sequence(form.opening, f'call{more}', form.closing, added)}", f"call: {body}"]


def _call(function: Json, form: CallFormat, path: str) -> str:
    """The JSON object of a call. Arguments of a tool that is not strict follow its schema where that can be followed,
    else they are any JSON object."""
    schema = function.get("parameters") or {"type": "object"}
    if not function.get("strict") and why_unsupported(schema, path) is not None:
        schema = {"type": "object"}
    head = f'{{"{form.name}": {literal(function["name"])}, "{form.arguments}": '
    return f"{literal(head)} {json_grammar({'type': 'object', **schema}, path)} {literal('}')}"
