"""Which tools an answer may or must call: `tool_choice` of a request, parsed into a mode and names.

gateway/structured/calls.py makes a grammar of it, which the answer follows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]
_FORMS = "'none', 'auto', 'required', a function by name, or allowed_tools"


class ToolMode(Enum):
    NONE = "none"  # the model sees no tools, and nothing is read as a call
    AUTO = "auto"  # the model decides whether it calls
    REQUIRED = "required"  # the answer is one call or more


@dataclass(frozen=True, slots=True)
class ToolChoice:
    mode: ToolMode
    names: frozenset[str] | None = None  # the tools that may be called; None: all
    named: bool = False  # the client names the one tool to call, once

    def allows(self, name: str) -> bool:
        return self.names is None or name in self.names


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools that an answer may call, as the client declared them, `strict` included."""

    tools: tuple[Json, ...] = ()
    mode: ToolMode = ToolMode.NONE
    parallel: bool = True  # the answer may have more than one call

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool["function"]["name"] for tool in self.tools)


NO_TOOLS = OfferedTools()


def parse_tool_choice(choice: Any, names: Sequence[str], tools_field: str) -> ToolChoice:
    """`names`: the declared tools. Without a choice the model decides if there are tools. A choice that a front
    door has parsed itself stays as it is."""
    if isinstance(choice, ToolChoice):
        return choice
    if choice is None:
        return ToolChoice(ToolMode.AUTO if names else ToolMode.NONE)
    if choice == "none":
        return ToolChoice(ToolMode.NONE)
    if choice == "auto":
        return ToolChoice(ToolMode.AUTO)
    if not names:
        raise InvalidRequest("tool_choice", f"tool_choice needs {tools_field}")
    if choice == "required":
        return ToolChoice(ToolMode.REQUIRED)
    if not isinstance(choice, dict):
        raise InvalidRequest("tool_choice", f"tool_choice must be {_FORMS}; it is {brief(json.dumps(choice))}")
    if choice.get("type") == "allowed_tools":
        return _allowed_tools(choice, names)
    return ToolChoice(ToolMode.REQUIRED, frozenset({_declared(choice, "tool_choice", names)}), named=True)


def _allowed_tools(choice: Json, names: Sequence[str]) -> ToolChoice:
    """The form of chat completions has an object `allowed_tools`; that of responses has its fields beside `type`."""
    nested = choice.get("allowed_tools")
    inner, path = (choice, "tool_choice") if nested is None else (nested, "tool_choice.allowed_tools")
    if not isinstance(inner, dict):
        raise InvalidRequest(path, f"{path} must be an object with mode and tools")
    mode, tools = inner.get("mode", "auto"), inner.get("tools")
    if mode not in ("auto", "required"):
        raise InvalidRequest(f"{path}.mode", f"{path}.mode must be 'auto' or 'required'")
    if not isinstance(tools, list) or not tools:
        raise InvalidRequest(f"{path}.tools", f"{path}.tools must be a list of at least one tool")
    allowed = frozenset(_declared(tool, f"{path}.tools[{index}]", names) for index, tool in enumerate(tools))
    return ToolChoice(ToolMode(mode), allowed)


def _declared(tool: Any, path: str, names: Sequence[str]) -> str:
    """The name of a declared tool: {"type": "function", "function": {"name": …}} or {"type": "function", "name": …}."""
    function = tool.get("function", tool) if isinstance(tool, dict) and tool.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        form = '{"type": "function", "function": {"name": …}}'
        raise InvalidRequest(path, f"{path} must be {_FORMS if path == 'tool_choice' else form}")
    if name not in names:
        raise InvalidRequest(path, f"{path} names {brief(name)!r}, which is not among the tools")
    return name
