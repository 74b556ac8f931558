"""Tools, tool choices and tool calls of baton.inference.v1 in the shape that gateway/text/tools.py validates."""

from collections.abc import Collection, Sequence
from typing import Any

from baton.inference.v1 import inference_pb2 as pb
from gateway.text.json_text import parse_json_object
from gateway.text.tool_calls import ToolCall
from gateway.text.tool_choice import ToolChoice, ToolMode
from gateway.text.tools import MAX_TOOLS
from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
CHOICE_FIELD = "chat.tool_choice"
_MODES = {
    pb.TOOL_MODE_NONE: ToolMode.NONE,
    pb.TOOL_MODE_AUTO: ToolMode.AUTO,
    pb.TOOL_MODE_REQUIRED: ToolMode.REQUIRED,
}


def tool_of(tool: pb.Tool, path: str) -> Json:
    function: Json = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    function["parameters"] = parse_json_object(tool.parameters_json, f"{path}.parameters_json")
    if tool.HasField("strict"):
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def tool_choice_of(chat: pb.Chat) -> ToolChoice | None:
    """The choice of a chat; None where the client leaves it to the model."""
    choice, declared = chat.tool_choice, {tool.name for tool in chat.tools}
    kind = choice.WhichOneof("choice")
    if kind is None:
        return None
    if kind == "mode":
        mode = _mode(choice.mode, f"{CHOICE_FIELD}.mode")
        if mode is ToolMode.REQUIRED and not declared:
            raise InvalidRequest(f"{CHOICE_FIELD}.mode", f"{CHOICE_FIELD}.mode needs chat.tools")
        return ToolChoice(mode)
    if kind == "name":
        _check_declared(choice.name, f"{CHOICE_FIELD}.name", declared)
        return ToolChoice(ToolMode.REQUIRED, frozenset({choice.name}), named=True)
    path, allowed = f"{CHOICE_FIELD}.allowed_tools", choice.allowed_tools
    mode = _mode(allowed.mode, f"{path}.mode") if allowed.HasField("mode") else ToolMode.AUTO
    if mode is ToolMode.NONE:
        raise InvalidRequest(f"{path}.mode", f"{path}.mode must be TOOL_MODE_AUTO or TOOL_MODE_REQUIRED")
    limit(f"{path}.names", allowed.names)
    if not allowed.names:
        raise InvalidRequest(f"{path}.names", f"{path}.names must name at least one tool")
    for at, name in enumerate(allowed.names):
        _check_declared(name, f"{path}.names[{at}]", declared)
    return ToolChoice(mode, frozenset(allowed.names))


def tool_call(call: ToolCall) -> pb.ToolCall:
    return pb.ToolCall(id=call.id, name=call.name, arguments_json=call.arguments)


def tool_call_part(call: ToolCall) -> pb.ToolCallPart:
    if call.later:
        return pb.ToolCallPart(index=call.index, arguments_json=call.arguments)
    return pb.ToolCallPart(index=call.index, id=call.id, name=call.name, arguments_json=call.arguments)


def limit(path: str, values: Sequence[Any]) -> None:
    if len(values) > MAX_TOOLS:
        raise InvalidRequest(path, f"{path} has {len(values)} entries; at most {MAX_TOOLS} are allowed")


def _mode(mode: int, path: str) -> ToolMode:
    if mode not in _MODES:
        known = ", ".join(pb.ToolMode.Name(each) for each in _MODES)
        raise InvalidRequest(path, f"{path} must be one of {known}, not {mode}")
    return _MODES[mode]  # type: ignore[index]


def _check_declared(name: str, path: str, declared: Collection[str]) -> None:
    if name not in declared:
        raise InvalidRequest(path, f"{path} names {brief(name)!r}, which is not among chat.tools")
