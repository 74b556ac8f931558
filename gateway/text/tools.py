"""Tools as a client declares them, and the calls and results in its messages: validated, or refused by field name.

This file also checks at start whether the model's chat template supports tools. A template without room for
tools, or one that writes calls in another form than gateway/text/tool_calls.py reads, makes the gateway refuse tools
with the reason, so that nothing is silently dropped."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.structured.calls import parse_tool_choice
from gateway.text.chat import ChatTemplate
from gateway.text.tool_calls import ToolCallReader
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_PROBE = "probe_of_tools"


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


def validate_tools(tools: Sequence[Any], choice: Any, fields: ChatFields) -> tuple[Json, ...]:
    """The valid tools, which the template shows to the model; none with tool_choice "none"."""
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(fields.tools, f"{fields.tools} has {len(tools)} entries; at most {MAX_TOOLS} are allowed")
    valid = tuple(_validate_tool(tool, fields, index) for index, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in valid]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(fields.tools, f"{fields.tools} declares {twice[0]} twice")
    parse_tool_choice(choice, names, tools=fields.tools)
    return () if choice == "none" else valid


def tool_names(tools: Sequence[Json]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def validate_earlier_calls(message: Json, fields: ChatFields, index: int) -> Json:
    """An assistant's message with its calls as templates expect them: arguments as an object."""
    calls, path = message["tool_calls"], f"{fields.message(index)}.tool_calls"
    if not isinstance(calls, list):
        raise InvalidRequest(path, f"{path} must be a list of calls")
    valid = [_validate_call(call, fields.call(index, at), fields.arguments) for at, call in enumerate(calls)]
    return message | {"tool_calls": valid}


def validate_tool_results(messages: Sequence[Json], fields: ChatFields) -> None:
    """Every tool message answers a call that an assistant's message before it has made."""
    called = set[str]()
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
            called.update(call_id for call_id in ids if isinstance(call_id, str))
        if message["role"] == "tool":
            path, id = f"{fields.message(index)}.tool_call_id", message.get("tool_call_id")
            if not isinstance(id, str):
                raise InvalidRequest(path, f"{path} must be the id of the call that this message answers")
            if id not in called:
                raise InvalidRequest(path, f"{path} is {brief(id)!r}; no assistant message before it has such a call")


def why_no_tools(template: ChatTemplate) -> str | None:
    """Why the template cannot be used with tools. None: it shows tools to the model and writes calls as they are
    read."""
    tool = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}
    call = {"id": "probe1234", "type": "function", "function": {"name": _PROBE, "arguments": {"key": "value"}}}
    question = {"role": "user", "content": "?"}
    try:
        with_tool = template.render([question], arguments={"tools": [tool]})
        with_call = template.render([question, {"role": "assistant", "content": "", "tool_calls": [call]}])
    except InvalidRequest as error:
        return error.message
    if _PROBE not in with_tool:
        return "the model's chat template has no place for tools"
    reader = ToolCallReader(frozenset({_PROBE}), before=with_call)
    return None if reader.count == 1 else "the model's chat template writes calls in a form that is not read here"


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
    if not isinstance(function.get("strict"), bool | None):
        raise InvalidRequest(f"{path}.strict", f"{path}.strict must be true or false")
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "strict"}}


def _validate_call(call: Any, path: str, arguments_field: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{path}.name", f"{path}.name is missing")
    arguments, name = function.get("arguments"), f"{path}.{arguments_field}"
    try:
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(name, f"{name} must be a JSON object: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidRequest(name, f"{name} must be a JSON object; it is {type(arguments).__name__}")
    return {**call, "function": {**function, "arguments": arguments}}
