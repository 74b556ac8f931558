"""`tool_choice` and strict tools as a grammar that writes calls in the form of the model's template.

Step 1 of a request's life. `required` and a named tool force a call. With `auto` the model decides, but where a tool is
`strict`, or only some tools are allowed, a call that it begins must name an allowed tool, and the arguments of a strict
one follow its schema."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.structured.forms import Added, Form, lark, pieces, sequence, thought, triggered
from gateway.structured.schema import json_grammar, why_unsupported
from gateway.text.formats import ReasoningFormat, ToolFormat
from gateway.text.tool_choice import OfferedTools, ToolMode
from mesh.errors import InvalidRequest

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class CallMarks:
    """The text around the JSON objects of calls."""

    opening: str  # before the first call
    begin: str  # before each call
    end: str  # behind each call
    between: str  # between two calls
    closing: str  # behind the last call

    @classmethod
    def of(cls, written: ToolFormat) -> "CallMarks":
        if written.listed or written.separator:  # calls share one mark
            return cls(written.opening, "", "", written.between, written.closing)
        return cls("", written.opening, written.closing, written.between, "")


def call_form(
    tools: Sequence[Json],
    offered: OfferedTools,
    added: Added,
    written: ToolFormat,
    *,
    answer: Form | None = None,  # what the answer must be where it is no call
    reasoning: ReasoningFormat | None = None,  # how the model marks what it thinks before a free answer
    tools_field: str = "tools",
    parameters: str = ".function.parameters",  # path from a tool to its schema, as the client spells it
    choice_field: str = "tool_choice",
) -> Form | None:
    """The form of an answer that may or must call tools; None: the model is free. `tools` are all that the client
    declares, `offered` those that may be called, `written` is how the model writes calls."""
    if offered.mode is ToolMode.NONE or not tools:
        return answer
    strict = any(tool["function"].get("strict") for tool in tools)
    restricted = len(offered.tools) < len(tools)
    # Each message of a model with channels begins with the mark that begins a call, so free text has no grammar.
    free = written.channels or not (strict or restricted)
    if offered.mode is ToolMode.AUTO and answer is None and free:
        return None
    marks = CallMarks.of(written)
    calls = [
        _call(tool["function"], written, added, f"{tools_field}[{at}]{parameters}")
        for at, tool in enumerate(tools)
        if tool["function"]["name"] in offered.names
    ]
    rules = _calls(calls, marks, added, parallel=offered.parallel)
    if offered.mode is ToolMode.REQUIRED:
        if answer is not None:
            raise InvalidRequest(answer.field, f"{answer.field} cannot be followed by an answer that must call a tool")
        return Form(choice_field, grammar=lark("\n".join(["start: calls", *rules])))
    if answer is None and written.bare:
        # A call has no mark before it: what begins like one is one, also behind white space.
        first, more = thought(reasoning, added)
        text = ["TEXT: /[ \\t\\r\\n]*([^{ \\t\\r\\n](.|\\n)*)?/", "SPACE: /[ \\t\\r\\n]+/"]
        rules = [f"start: {first}(SPACE? calls | TEXT)", *text, *more, *rules]
        return Form(tools_field, grammar=lark("\n".join(rules)), free=True)
    if answer is None:
        trigger = (marks.opening + marks.begin).rstrip()
        rest = (marks.opening + marks.begin)[len(trigger) :]
        bodies = [sequence(rest, call, marks.end + marks.closing, added) for call in calls]
        most = "*" if offered.parallel else "?"
        grammar = triggered({trigger: bodies}, added, most=most, reasoning=reasoning)
        return Form(tools_field, grammar=lark(grammar), free=True)
    if not answer.json:
        raise InvalidRequest(answer.field, f"{answer.field} cannot be combined with {tools_field}")
    return Form(answer.field, grammar=lark("\n".join(["start: answer | calls", f"answer: {answer.json}", *rules])))


def _calls(calls: Sequence[str], form: CallMarks, added: Added, *, parallel: bool) -> list[str]:
    more = f" ({' '.join((*pieces(form.between, added), 'call'))})*" if parallel else ""
    body = " | ".join(sequence(form.begin, call, form.end, added) for call in calls)
    return [f"calls: {sequence(form.opening, f'call{more}', form.closing, added)}", f"call: {body}"]


def _call(function: Json, written: ToolFormat, added: Added, path: str) -> str:
    """A call without the marks around it. Arguments of a tool that is not strict follow its schema where that can be
    followed, else they are any JSON object."""
    schema = function.get("parameters") or {"type": "object"}
    if not function.get("strict") and why_unsupported(schema, path) is not None:
        schema = {"type": "object"}
    body = json_grammar({"type": "object", **schema}, path)
    return sequence(written.call(function["name"]), body, written.call_end, added)
