"""What the corpus consists of: talks, each of one kind, and the draws that generators of talks share.

A generator is a function of a random generator and a split. A hash of the user's questions decides which split a talk
belongs to, so the training split can never contain a held-out question."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
HELD_OUT = 40  # one question in so many is held out


class Split(Enum):
    TRAINED = "trained"  # talks from which the model learns
    HELD = "held"  # talks by which it is judged


class Kind(Enum):
    EXPLAIN = "explain"
    ARITHMETIC = "arithmetic"
    LISTS = "lists"
    STORIES = "stories"
    JSON = "json"
    TOOLS = "tools"
    CHAT = "chat"


@dataclass(frozen=True, slots=True)
class ToolUse:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    role: str  # system | user | assistant | tool
    content: str
    calls: tuple[ToolUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Talk:
    kind: Kind
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()  # in the form of the OpenAI API
    about: dict[str, Any] = field(default_factory=dict)  # what a judge of the answer needs

    def messages(self) -> list[dict[str, Any]]:
        """The turns in the form that a chat template takes."""
        return [_message(turn) for turn in self.turns]

    def asked(self) -> str:
        return "\n".join(turn.content for turn in self.turns if turn.role == "user")


Generator = Callable[[Random, Split], Talk]


def ask(kind: Kind, question: str, answer: str, **about: Any) -> Talk:
    """A talk of one question and one answer."""
    return Talk(kind, (Turn("user", question), Turn("assistant", answer)), about=about)


def is_held(key: str, one_in: int = HELD_OUT) -> bool:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % one_in == 0


def belongs(talk: Talk, part: Split) -> bool:
    return is_held(talk.asked()) == (part is Split.HELD)


def often(rng: Random, items: Sequence[T], first: float = 0.6) -> T:
    """Draws the first item most often and each later one less often, so that the network can learn the likeliest."""
    for item in items[:-1]:
        if rng.random() < first:
            return item
    return items[-1]


def listed(items: Sequence[str]) -> str:
    """The items as a phrase: "a, b and c"."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": turn.content}
    if turn.calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls
        ]
    return message
