"""Tools as a client declares them, and the calls and results in its messages: validated, or refused by field name.

This file also checks at start whether the model's chat template supports tools. A template without room for
tools, or one that writes calls in none of the forms of gateway/text/formats.py, makes the gateway refuse tools with the
reason, so that nothing is silently dropped."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.text.answer_parser import AnswerParser
from gateway.text.chat import ChatTemplate
from gateway.text.formats import AUTO, NONE, PROBE, TOOL_FORMATS, ToolFormat, shows_tools, written_call
from gateway.text.harmony import HarmonyParser
from gateway.text.json_text import parse_json_object
from gateway.text.tool_choice import NO_TOOLS, OfferedTools, ToolMode, parse_tool_choice
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
MAX_TOOLS = 128
REASONING_FIELDS = ("reasoning_content", "reasoning")
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class ChatFields:
    """How a front door spells the fields of a chat."""

    messages: str
    tools: str
    template_arguments: str
    function: str  # path from a tool or a call to the object with its name
    arguments: str  # field of a call's arguments in that object
    parameters: str  # field of a tool's parameters in that object

    def message(self, index: int) -> str:
        return f"{self.messages}[{index}]"

    def call(self, message: int, index: int) -> str:
        return f"{self.message(message)}.tool_calls[{index}]{self.function}"

    def tool(self, index: int) -> str:
        return f"{self.tools}[{index}]"


def validate_tools(tools: Sequence[Any], choice: Any, fields: ChatFields, *, parallel: bool = True) -> OfferedTools:
    """The tools that the answer may call; the template shows them to the model, and no others."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(fields.tools, f"{fields.tools} has {len(tools)} entries; at most {MAX_TOOLS} are allowed")
    valid = tuple(_validate_tool(tool, fields, index) for index, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in valid]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(fields.tools, f"{fields.tools} declares {twice[0]} twice")
    parsed = parse_tool_choice(choice, names, fields.tools)
    if parsed.mode is ToolMode.NONE:
        return NO_TOOLS
    allowed = tuple(tool for tool in valid if parsed.allows(tool["function"]["name"]))
    return OfferedTools(allowed, parsed.mode, parallel and not parsed.named)


def shown_tools(use: OfferedTools) -> list[Json]:
    """The tools as templates take them: `strict` is a word between client and server."""
    return [
        {"type": "function", "function": {key: value for key, value in tool["function"].items() if key != "strict"}}
        for tool in use.tools
    ]


def validate_earlier_calls(message: Json, fields: ChatFields, index: int) -> Json:
    """An assistant's message with its calls as templates expect them: arguments as an object."""
    calls, path = message["tool_calls"], f"{fields.message(index)}.tool_calls"
    if not isinstance(calls, list):
        raise InvalidRequest(path, f"{path} must be a list of calls")
    valid = [_validate_call(call, fields.call(index, at), fields.arguments) for at, call in enumerate(calls)]
    return message | {"tool_calls": valid}


def validate_reasoning(message: Json, path: str) -> Json:
    """An assistant's message with its reasoning under each name that templates read."""
    for name in REASONING_FIELDS:
        if not isinstance(message.get(name), str | None):
            raise InvalidRequest(f"{path}.{name}", f"{path}.{name} must be text")
    reasoning = next((message[name] for name in REASONING_FIELDS if message.get(name)), None)
    rest = {key: value for key, value in message.items() if key not in REASONING_FIELDS}
    names = (*REASONING_FIELDS, "thinking")
    return rest if reasoning is None else rest | dict.fromkeys(names, reasoning)


def tool_support(template: ChatTemplate, setting: str = AUTO) -> tuple[ToolFormat | None, str | None]:
    """The form of the model's calls, or why the template cannot be used with tools. `setting`: tool_format."""
    if setting == NONE:
        return None, "the setting tool_format is none"
    try:
        if not shows_tools(template):
            return None, "the model's chat template has no place for tools"
        turn = written_call(template) if setting == AUTO else ""
    except InvalidRequest as error:
        return None, error.message
    for row in TOOL_FORMATS:
        if row.name == setting or (setting == AUTO and _is_written_in(row, turn)):
            return row, None
    return None, "the model's chat template writes calls in a form that is not read here"


def _is_written_in(row: ToolFormat, turn: str) -> bool:
    names = frozenset({PROBE})
    parser = HarmonyParser(names) if row.channels else AnswerParser(row, names)
    parser.feed(turn)
    return parser.count == 1


def _validate_tool(tool: Any, fields: ChatFields, index: int) -> Json:
    path = fields.tool(index)
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise InvalidRequest(path, f'{path} must be {{"type": "function", "function": {{"name": …}}}}')
    path += fields.function
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        raise InvalidRequest(f"{path}.name", f"{path}.name must be 1 to 64 letters, digits, '_', '-' or '.'")
    if not isinstance(function.get("description"), str | None):
        raise InvalidRequest(f"{path}.description", f"{path}.description must be text")
    if not isinstance(function.get("parameters"), dict | None):
        name = f"{path}.{fields.parameters}"
        raise InvalidRequest(name, f"{name} must be a JSON schema of an object")
    if function.get("parameters") and (kind := function["parameters"].get("type", "object")) != "object":
        name = f"{path}.{fields.parameters}.type"
        raise InvalidRequest(name, f"{name} is {brief(repr(kind))}; arguments are an object")
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(f"{path}.strict", f"{path}.strict must be true or false")
    return {"type": "function", "function": function}


def _validate_call(call: Any, path: str, arguments_field: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{path}.name", f"{path}.name is missing")
    arguments, name = function.get("arguments"), f"{path}.{arguments_field}"
    if isinstance(arguments, str | None):
        arguments = parse_json_object(arguments, name)
    if not isinstance(arguments, dict):
        raise InvalidRequest(name, f"{name} must be a JSON object; it is {type(arguments).__name__}")
    return {**call, "function": {**function, "arguments": arguments}}
