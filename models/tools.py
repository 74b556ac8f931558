"""Talks with tool calls: tools in the system prompt, a question, the call, its result and the answer, and conversation
in between that needs no tool.

The names of tools and parameters vary, so the network must read them off the list. It copies arguments from the
question."""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from models.arithmetic import addends
from models.chat import exchange
from models.made_tools import made_tool
from models.talk import Kind, Split, Talk, ToolUse, Turn, belongs, often
from models.tool_kinds import TOOLS, Tool

_MADE = 0.3  # share of tools with made-up names
_ORDERS = (("name", "description", "parameters"), ("description", "name", "parameters"))
_SYSTEM = ("", "You are a helpful assistant.", "You are Baton's guide.", "Use the tools when they help.")


@dataclass(frozen=True, slots=True)
class _Offered:
    tool: Tool
    name: str
    keys: dict[str, str]  # usual name of a parameter -> the name offered here


def tools(rng: Random, part: Split) -> Talk:
    while True:
        talk = conversation(rng, rng.choices((1, 2, 3, 4), (40, 25, 25, 10))[0])
        if belongs(talk, part):
            return talk


def conversation(rng: Random, exchanges: int) -> Talk:
    """A talk of so many questions, some of which need a tool."""
    count = rng.choices((1, 2, 3), (50, 35, 15))[0]
    known = rng.sample(TOOLS, count)
    offers = [offer(rng, made_tool(rng) if rng.random() < _MADE else tool) for tool in known]
    turns: list[Turn] = []
    system = rng.choice(_SYSTEM)
    if system:
        turns.append(Turn("system", system))
    told: dict[str, str] = {}
    answer = ""
    for place in range(exchanges):
        if rng.random() < (0.75 if place == 0 else 0.45):
            turns.extend(use(rng, rng.choice(offers)))
            answer = turns[-1].content
        else:
            question, answer = exchange(rng, told, before=answer, unknown=False)
            turns.extend((Turn("user", question), Turn("assistant", answer)))
    return Talk(Kind.TOOLS, tuple(turns), _listed(rng, offers))


def offer(rng: Random, tool: Tool) -> _Offered:
    keys = {key: often(rng, (key, *parameter.aliases), 0.7) for key, parameter in tool.parameters.items()}
    return _Offered(tool, often(rng, tool.names, 0.6), keys)


def declared(rng: Random, offered: _Offered) -> dict[str, Any]:
    """The tool in the form of the OpenAI API."""
    properties = {
        offered.keys[key]: parameter.schema | ({"description": parameter.text} if rng.random() < 0.3 else {})
        for key, parameter in offered.tool.parameters.items()
    }
    parameters: dict[str, Any] = {"type": "object", "properties": properties, "required": list(properties)}
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    fields = {"name": offered.name, "description": offered.tool.text, "parameters": parameters}
    order: tuple[str, ...] = often(rng, _ORDERS, 0.85)
    if rng.random() < 0.1:
        order = tuple(key for key in order if key != "description")
    return {"type": "function", "function": {key: fields[key] for key in order}}


def use(rng: Random, offered: _Offered) -> tuple[Turn, Turn, Turn, Turn]:
    """The four turns of a tool call: question, call, result, answer."""
    tool = offered.tool
    values = {key: parameter.draw(rng) for key, parameter in tool.parameters.items()}
    if tool.sums:
        values = dict(zip(values, addends(rng, Split.TRAINED), strict=True))
    result = tool.result(rng, values)
    shown = values | {key: value for key, value in result.items() if key not in values}
    call = ToolUse(offered.name, {offered.keys[key]: value for key, value in values.items()})
    return (
        Turn("user", rng.choice(tool.asks).format(**values)),
        Turn("assistant", "", (call,)),
        Turn("tool", json.dumps(result)),
        Turn("assistant", tool.answer.format(**shown)),
    )


def _listed(rng: Random, offers: list[_Offered]) -> tuple[dict[str, Any], ...]:
    return tuple(declared(rng, one) for one in offers)
