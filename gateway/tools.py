"""Tools as a client declares them, and whether the model's chat template can tell the model of them.

Checked here so that nothing is silently dropped: a template without room for tools, or whose calls are written in
another way than gateway/calls.py reads, refuses tools with the reason."""

import json
import re
from collections.abc import Sequence
from typing import Any

from gateway.calls import CallReader
from gateway.chat import ChatTemplate
from mesh.errors import InvalidRequest

Json = dict[str, Any]
TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_PROBE = "probe_of_tools"


def declared(tools: Sequence[Json] | None, choice: Any) -> tuple[Json, ...]:
    """What the model is told of; nothing with tool_choice "none"."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice", "tool_choice needs tools")
        return ()
    if choice not in (None, "none", "auto"):
        said = choice if isinstance(choice, str) else json.dumps(choice)
        raise InvalidRequest(
            "tool_choice",
            f"tool_choice {said} is not supported: the model decides whether it calls; use 'auto' or 'none'",
        )
    if len(tools) > TOOLS:
        raise InvalidRequest("tools", f"tools has {len(tools)} entries, at most {TOOLS}")
    checked = tuple(_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools))
    names = [tool["function"]["name"] for tool in checked]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest("tools", f"tools declares {twice[0]} twice")
    return () if choice == "none" else checked


def names_of(tools: Sequence[Json]) -> frozenset[str]:
    return frozenset(tool["function"]["name"] for tool in tools)


def said_calls(message: Json, where: str) -> Json:
    """An assistant's earlier calls as templates expect them: arguments as an object."""
    calls = message["tool_calls"]
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}.tool_calls", f"{where}.tool_calls must be a list of calls")
    return message | {"tool_calls": [_said(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]}


def check_answered(messages: Sequence[Json]) -> None:
    """A tool's answer belongs to a call that was made before it."""
    called = set[str]()
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            ids = [call.get("id") for call in message.get("tool_calls") or ()]
            called.update(one for one in ids if isinstance(one, str))
        if message["role"] == "tool":
            where, given = f"messages[{index}].tool_call_id", message.get("tool_call_id")
            if not isinstance(given, str):
                raise InvalidRequest(where, f"{where} must be the id of the call that this message answers")
            if given not in called:
                raise InvalidRequest(where, f"{where} is {given!r}; no assistant message before it has such a call")


def why_no_tools(template: ChatTemplate) -> str | None:
    """None: the template tells the model of tools, and writes calls as they are read here."""
    tool = {"type": "function", "function": {"name": _PROBE, "description": "", "parameters": {"type": "object"}}}
    call = {"id": "probe1234", "type": "function", "function": {"name": _PROBE, "arguments": {"key": "value"}}}
    asked = {"role": "user", "content": "?"}
    try:
        listed = template.render([asked], arguments={"tools": [tool]})
        said = template.render([asked, {"role": "assistant", "content": "", "tool_calls": [call]}])
    except InvalidRequest as error:
        return error.message
    if _PROBE not in listed:
        return "the model's chat template has no place for tools"
    reader = CallReader(frozenset({_PROBE}), before=said)
    return None if reader.count == 1 else "the model's chat template writes calls in a form that is not read here"


def _tool(tool: Any, where: str) -> Json:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise InvalidRequest(where, f'{where} must be {{"type": "function", "function": {{"name": …}}}}')
    where = f"{where}.function"
    if not isinstance(function.get("name"), str) or not _NAME.fullmatch(function["name"]):
        raise InvalidRequest(f"{where}.name", f"{where}.name must be 1 to 64 letters, digits, '_', '-' or '.'")
    if not isinstance(function.get("description"), str | None):
        raise InvalidRequest(f"{where}.description", f"{where}.description must be text")
    if not isinstance(function.get("parameters"), dict | None):
        raise InvalidRequest(f"{where}.parameters", f"{where}.parameters must be a JSON schema of an object")
    if function.get("strict"):
        raise InvalidRequest(f"{where}.strict", f"{where}.strict is not supported: what the model writes is not forced")
    return {"type": "function", "function": {key: value for key, value in function.items() if key != "strict"}}


def _said(call: Any, where: str) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function.name", f"{where}.function.name is missing")
    arguments = function.get("arguments")
    try:
        arguments = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
    except (ValueError, RecursionError) as error:
        raise _no_object(where, str(error)) from error
    if not isinstance(arguments, dict):
        raise _no_object(where, f"it is {type(arguments).__name__}")
    return {**call, "function": {**function, "arguments": arguments}}


def _no_object(where: str, why: str) -> InvalidRequest:
    name = f"{where}.function.arguments"
    return InvalidRequest(name, f"{name} must be a JSON object: {why}")
