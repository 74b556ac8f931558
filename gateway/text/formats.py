"""How models write tool calls and reasoning: one row for each form, and which of them a model's chat template has.

A model with tools is served with the form in which its template writes earlier calls, because that is what the model
has learned. gateway/text/answer_parser.py reads answers by these rows; a grammar can force answers into them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.text.chat import ChatTemplate
from mesh.errors import InvalidRequest

NAME_KEY = "name"
ARGUMENTS_KEYS = ("arguments", "parameters")  # both are read in every form
PROBE = "probe_of_tools"
_PROBED = "probe of reasoning"
HARMONY_ENDS = ("<|return|>", "<|call|>")  # tokens of harmony with which an answer ends
HARMONY_MARKS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", *HARMONY_ENDS)
_QUESTION = {"role": "user", "content": "?"}
_TOOL = {"type": "function", "function": {"name": PROBE, "description": "", "parameters": {"type": "object"}}}
# Some templates refuse ids that are not nine letters and digits.
_CALL = {"id": "probe1234", "type": "function", "function": {"name": PROBE, "arguments": {"key": "value"}}}


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The form of calls. A call is a JSON object with a name and arguments; `begin` and `end` stand around it.

    Read leniently: white space between the parts, and a missing end, make no difference."""

    name: str  # value of the setting tool_format
    begin: str  # mark before a call
    end: str = ""  # mark after a call; empty: none
    arguments_key: str = "arguments"
    listed: bool = False  # the calls behind one `begin` stand in a JSON list
    separator: str = ""  # between calls that share one `begin`
    bare: bool = False  # the answer may begin with a call without `begin`
    arguments_mark: str = ""  # also read: name, this mark, arguments; empty: not read
    short_ids: bool = False  # ids of calls have nine letters and digits, which the template insists on
    lead: str = ""  # white space or bracket that models write between `begin` and the first call
    tail: str = ""  # what they write between the last call and `end`
    between: str = "\n"  # what they write between two calls, or between two blocks where a block holds one call
    channels: bool = False  # calls are messages in channels, which gateway/text/harmony.py reads

    @property
    def opening(self) -> str:
        """Everything that a model writes before the first call; a grammar begins with it."""
        return ("" if self.bare else self.begin) + self.lead

    @property
    def closing(self) -> str:
        return self.tail + self.end

    def call(self, name: str) -> str:
        """The written beginning of a call, up to its arguments."""
        if self.channels:
            return f"{name} <|constrain|>json<|message|>"
        return f'{{"{NAME_KEY}": "{name}", "{self.arguments_key}": '

    @property
    def call_end(self) -> str:
        """The text behind the arguments of a call."""
        return "" if self.channels else "}"

    @property
    def marks(self) -> tuple[str, ...]:
        if self.channels:
            return HARMONY_MARKS
        return tuple(filter(None, (self.begin, self.end, self.arguments_mark, "[CALL_ID]" if self.listed else "")))


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The marks around what a model thinks before it answers."""

    name: str  # value of the setting reasoning_format
    begin: str
    end: str
    channels: bool = False  # it is a message in a channel, which gateway/text/harmony.py reads
    barred: int = -1  # token of `begin` without which there is no reasoning: the last one, or the channel's name
    other_ends: tuple[str, ...] = ()  # marks besides `end` that end it

    @property
    def marks(self) -> tuple[str, ...]:
        return HARMONY_MARKS if self.channels else (self.begin, self.end)

    def is_in(self, source: str) -> bool:
        """Whether the source of a template tells that its model reasons in this form."""
        return (self.begin if self.channels else self.end) in source


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", lead="\n", tail="\n")  # Qwen and the built-in pair too
MISTRAL = ToolFormat(
    "mistral",
    "[TOOL_CALLS]",
    listed=True,
    separator=",",
    arguments_mark="[ARGS]",
    short_ids=True,
    lead=" [",
    tail="]",
    between=", ",
)
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", arguments_key="parameters", separator=";", bare=True, between="; ")
HARMONY = ToolFormat("harmony", "<|channel|>commentary to=functions.", between="<|start|>assistant", channels=True)
TOOL_FORMATS = (HERMES, MISTRAL, LLAMA3, HARMONY)
THINK = ReasoningFormat("think", "<think>", "</think>")
MISTRAL_THINK = ReasoningFormat("mistral", "[THINK]", "[/THINK]")
HARMONY_ANALYSIS = ReasoningFormat(
    "harmony",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    channels=True,
    barred=1,
    other_ends=(*HARMONY_ENDS, "<|start|>", "<|channel|>"),
)
REASONING_FORMATS = (THINK, MISTRAL_THINK, HARMONY_ANALYSIS)
AUTO, NONE = "auto", "none"


def written_turn(template: ChatTemplate, message: dict[str, Any]) -> str:
    """The text that the template writes for an assistant's message, behind the prompt for an answer."""
    asked = template.render([_QUESTION])
    answered = template.render([_QUESTION, {"role": "assistant", **message}], add_generation_prompt=False)
    same = 0
    while same < min(len(asked), len(answered)) and asked[same] == answered[same]:
        same += 1
    # A prompt that opens the reasoning shares the beginning of its mark with that of a call.
    mark = max(answered.rfind("<", 0, same), answered.rfind("[", 0, same))
    return answered[mark if mark >= 0 and not {">", "]"}.intersection(answered[mark:same]) else same :]


def written_call(template: ChatTemplate) -> str:
    """An assistant's turn with one call of the tool PROBE."""
    return written_turn(template, {"content": "", "tool_calls": [_CALL]})


def shows_tools(template: ChatTemplate) -> bool:
    return PROBE in template.render([_QUESTION], arguments={"tools": [_TOOL]})


def reasoning_format(template: ChatTemplate, setting: str = AUTO) -> ReasoningFormat | None:
    """The form of the model's reasoning; None: it has none, or the setting is `none`."""
    if setting != AUTO:
        return next((row for row in REASONING_FORMATS if row.name == setting), None)
    try:
        turn = written_turn(template, {"content": "?", "reasoning_content": _PROBED, "reasoning": _PROBED})
    except InvalidRequest:
        turn = ""
    for row in REASONING_FORMATS:
        if row.begin in turn.partition(_PROBED)[0] or row.is_in(template.source):
            return row
    return None


def reasoning_begun(row: ReasoningFormat | None, prompt: str) -> bool:
    """Whether the prompt ends inside the model's reasoning: some templates open it for the model."""
    return row is not None and prompt.rstrip().endswith(row.begin)


def names_of(rows: Sequence[ToolFormat | ReasoningFormat]) -> tuple[str, ...]:
    """Values of the setting that chooses among the rows."""
    return (AUTO, NONE, *(row.name for row in rows))
