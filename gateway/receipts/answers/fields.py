"""The fields of an answer and their digests: a receipt has one digest for each field, so a change is named.

A field is a path like `choices[0].message.content` and the value there. The gateway chooses the paths and signs a
digest for each; a reader looks at the same paths of the answer in hand. Whatever no path covers was added later.

The digests need the salt, which stands beside the receipt in the answer and not in the receipt: who reads the receipt
alone cannot try out short texts."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.receipts.canonical import ReceiptError

Json = dict[str, Any]
MAX_FIELDS = 4096  # digests in one receipt; an answer with more fields gets coarser ones
DIGITS = 32  # hex digits of a digest: 128 bits
# Objects and lists that are several fields. All else is one field, above all what the client chose: schemas, metadata,
# the arguments of a call. Its names would say something about the request.
OPENED = {
    *("", "choices", "message", "tool_calls", "function", "usage", "usage_so_far", "timings", "logprobs", "meta_info"),
    *("prompt_tokens_details", "completion_tokens_details", "input_tokens_details", "output_tokens_details"),
    *("output", "content", "finish_reason", "incomplete_details"),
    *("response", "item", "part", "delta", "content_block"),  # members of a stream's events
    *("started", "finished", "numerics_class", "prompt_logprobs", "choice_finished"),  # members of gRPC's answers
}
SCORES = ("logprobs", "logprobs.content")  # ends of paths to lists with an entry for each token
_EVENTS = ("response_", "message_", "content_block_")  # begin the types of events, which hold lists of them
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STEP = re.compile(r'\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d+)\]|\.?"')


class LongList:
    """A list of which only a running hash is kept; its digest is that of the list."""

    def __init__(self) -> None:
        self._running = hashlib.sha256(b"[")

    def extend(self, items: Sequence[Any]) -> None:
        for item in items:
            self._running.update(_spelled(item) + b",")

    @property
    def hash(self) -> bytes:
        whole = self._running.copy()
        whole.update(b"]")
        return whole.digest()


@dataclass(slots=True)
class SentAnswer:
    """An answer as its client reads it."""

    value: Any  # the answer; that of a stream has the form of a whole one
    stream: Any = None  # what else the events of a stream say; None: the answer was not streamed
    problems: list[str] = field(default_factory=list)  # fields in which the events of a stream contradict each other


@dataclass(frozen=True, slots=True)
class AnswerDifference:
    path: str
    how: str  # changed, added, removed

    @property
    def text(self) -> str:
        return f"{self.path} was {self.how}"


def covered(answer: SentAnswer, salt: str) -> Json:
    """The member `answer` of a receipt."""
    return {
        "salt": salt_digest(salt),
        "fields": _digests(answer.value, "", salt),
        "stream": None if answer.stream is None else _digests(answer.stream, STREAM, salt),
    }


def changes(record: "Covered", answer: SentAnswer, salt: str | None) -> list[AnswerDifference]:
    """How this answer differs from the one that was signed."""
    if salt is None or salt_digest(salt) != record.salt:
        return [AnswerDifference("receipt_salt", "removed" if salt is None else "changed")]
    found = [AnswerDifference(path, "changed") for path in answer.problems]
    found += _changes(record.fields, answer.value, "", salt)
    if answer.stream is not None:
        found += _changes(record.stream or [], answer.stream, STREAM, salt)
    return list({each.path: each for each in reversed(found)}.values())[::-1]


@dataclass(frozen=True, slots=True)
class Covered:
    """The member `answer` as it is read."""

    salt: str
    fields: list[tuple[str, str]]
    stream: list[tuple[str, str]] | None


STREAM = "stream:"  # begins the digests of what only a stream has, so that none stands for a field of the answer


def salt_digest(salt: str) -> str:
    return hashlib.sha256(b"baton salt\n" + salt.encode()).hexdigest()


def _digests(value: Any, kind: str, salt: str) -> list[list[str]]:
    fine = [path for path, _ in _opened(value, "", "")]
    for steps in (None, 5, 4, 3, 2, 1, 0):
        paths = list(dict.fromkeys(_cut(path, steps) for path in fine))
        if len(paths) <= MAX_FIELDS:
            break
    return [[path, _digest(_at(value, path)[1], path, kind, salt)] for path in paths]


def _digest(value: Any, path: str, kind: str, salt: str) -> str:
    """The digest of a field, or of all fields in an object or list."""
    running = hashlib.sha256(f"baton answer\n{salt}\n{kind}{path}\n".encode())
    for inner, each in _opened(value, path, _last(path)):
        running.update(f"{inner}\n".encode() + content_hash(each))
    return running.hexdigest()[:DIGITS]


def _cut(path: str, steps: int | None) -> str:
    """The beginning of the path."""
    ends = [step.end() for step in _STEP.finditer(path)]
    return path if steps is None or len(ends) <= steps else path[: ends[steps - 1]] if steps else ""


def _last(path: str) -> str:
    """The name at the end of the path; empty at its root and behind a number."""
    return "" if path.endswith("]") else path.rpartition(".")[2]


def content_hash(value: Any) -> bytes:
    if isinstance(value, LongList):
        return value.hash
    if isinstance(value, list):
        listed = LongList()
        listed.extend(value)
        return listed.hash
    return hashlib.sha256(_spelled(value)).digest()


def _spelled(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_within).encode()


def _within(value: Any) -> str:
    """A long list inside of what is one field. No gateway signs that, but a forged answer may come to it."""
    return value.hash.hex() if isinstance(value, LongList) else repr(value)


def _opened(value: Any, path: str, name: str) -> Iterator[tuple[str, Any]]:
    """`name`: the last one of the path. Lists are opened where they hold objects."""
    opened = name in OPENED or (not path.endswith("]") and name.startswith(_EVENTS))
    if opened and isinstance(value, dict) and value and all(map(_PLAIN.fullmatch, value)):
        for key, member in value.items():
            yield from _opened(member, joined(path, key), key)
    elif opened and _holds_objects(value) and not path.endswith(SCORES):
        for at, member in enumerate(value):
            yield from _opened(member, f"{path}[{at}]", "")
    else:
        yield path, value


def _holds_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)


def joined(path: str, key: str) -> str:
    """The path of a member. A name that could be read as several is quoted."""
    name = key if _PLAIN.fullmatch(key) else json.dumps(key)
    return f"{path}.{name}" if path else name


def _changes(signed: Sequence[tuple[str, str]], value: Any, kind: str, salt: str) -> Iterator[AnswerDifference]:
    for path, digest in signed:
        there, found, where = _at(value, path)
        if not there:
            yield AnswerDifference(shown(where), "removed" if where == path else "changed")
        elif _digest(found, path, kind, salt) != digest:
            yield AnswerDifference(shown(path), "changed")
    for path in _uncovered(value, "", {path for path, _ in signed}):
        yield AnswerDifference(shown(path), "added")


def shown(path: str) -> str:
    return path or "the answer"


def _at(value: Any, path: str) -> tuple[bool, Any, str]:
    """Whether there is something at the path, what, and else the path that is missing or holds no parts."""
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None or step[0].endswith('"'):
            raise ReceiptError(f"the receipt names a field that cannot be read: {path[:64]}")
        before, at = path[:at], step.end()
        if step[1] is not None and isinstance(value, dict):
            if step[1] not in value:
                return False, None, path[:at] if at == len(path) else path
            value = value[step[1]]
        elif step[2] is not None and isinstance(value, list):
            if int(step[2]) >= len(value):
                return False, None, path
            value = value[int(step[2])]
        else:
            return False, None, before
    return True, value, path


def _uncovered(value: Any, path: str, signed: set[str]) -> Iterator[str]:
    if path in signed:
        return
    if isinstance(value, dict) and value:
        for key, member in value.items():
            yield from _uncovered(member, joined(path, str(key)), signed)
    elif isinstance(value, list) and value:
        for at, member in enumerate(value):
            yield from _uncovered(member, f"{path}[{at}]", signed)
    else:
        yield path
