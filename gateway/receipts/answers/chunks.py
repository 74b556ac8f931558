"""The chunks of a streamed chat, completion or token answer as the whole answer that they amount to.

What is a delta is joined; what every chunk repeats must be equal in all of them; nothing follows a choice's end. A
chunk that breaks this is named: the gateway sends none, so somebody changed it."""

from typing import Any

from gateway.receipts.answers.fields import LongList, SentAnswer, content_hash, joined

Json = dict[str, Any]
_CHUNK = ".chunk"  # ends the kind of a streamed chat's objects
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


class _Text(list[str]):
    """The pieces of a text."""


class ChunkFold:
    def __init__(self) -> None:
        self._head: Json = {}
        self._choices: dict[int, Json] = {}
        self._usage_so_far: Json = {}
        self._chunks = self._parts = 0
        self.problems = list[str]()

    def add(self, chunk: Json) -> None:
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            self.problems.append("choices")
            choices = []
        self._chunks, self._parts = self._chunks + 1, self._parts + len(choices)
        for name, value in chunk.items():
            if name == "usage" and choices:
                add_column(self._usage_so_far, "usage", value)
            elif name != "choices":
                self._repeated(self._head, name, value, "")
        for at, choice in enumerate(choices):
            self._add_choice(choice, f"choices[{at}]")

    def answer(self) -> SentAnswer:
        head = dict(self._head)
        kind = head.get("object")
        if isinstance(kind, str):
            head["object"] = kind.removesuffix(_CHUNK)
        choices = [_whole_choice(_written(self._choices[index])) for index in sorted(self._choices)]
        stream = {"object": kind, "chunks": self._chunks, "choices_of_chunks": self._parts}
        stream |= {"usage_so_far": self._usage_so_far} if self._usage_so_far else {}
        return SentAnswer(head | {"choices": choices}, stream, self.problems)

    def _add_choice(self, choice: Any, path: str) -> None:
        index = choice.get("index") if isinstance(choice, dict) else None
        if not isinstance(index, int) or isinstance(index, bool):
            self.problems.append(f"{path}.index")
            return
        path = f"choices[{index}]"
        found = self._choices.setdefault(index, {})
        if found.get("finish_reason") is not None:
            self.problems.append(f"{path}.finish_reason")
        for name, value in choice.items():
            if name == "delta" and isinstance(value, dict):
                message = self._object(found, "message", path)
                for part, each in value.items():
                    self._add_part(message, part, each, f"{path}.message")
            elif name == "text":
                self._text(found, name, value, path)
            elif name == "token_ids":
                self._list(found, name, value, path)
            elif name == "logprobs" and isinstance(value, dict):
                if found.get(name) is None:
                    found[name] = {}
                lists = self._object(found, name, path)
                for kind, each in value.items():
                    add = self._list if isinstance(each, list) else self._repeated
                    add(lists, kind, each, f"{path}.logprobs")
            elif name in ("logprobs", "finish_reason", "stop_reason"):
                self._once(found, name, value, path)
            else:
                self._repeated(found, name, value, path)

    def _add_part(self, message: Json, name: str, value: Any, path: str) -> None:
        if name in _TEXTS:
            self._text(message, name, value, path)
        elif name == "tool_calls" and isinstance(value, list):
            calls = self._object(message, name, path)
            for at, piece in enumerate(value):
                self._add_call(calls, piece, f"{path}.tool_calls[{at}]")
        else:
            self._repeated(message, name, value, path)

    def _add_call(self, calls: dict[int, Json], piece: Any, path: str) -> None:
        index = piece.get("index") if isinstance(piece, dict) else None
        if not isinstance(index, int) or isinstance(index, bool):
            self.problems.append(f"{path}.index")
            return
        call, path = calls.setdefault(index, {}), path.rpartition("[")[0] + f"[{index}]"
        for name, value in piece.items():
            if name == "function" and isinstance(value, dict):
                function = self._object(call, name, path)
                for part, each in value.items():
                    add = self._text if part == "arguments" else self._repeated
                    add(function, part, each, f"{path}.function")
            elif name != "index":
                self._repeated(call, name, value, path)

    def _object(self, into: Json, name: str, path: str) -> Any:
        found = into.setdefault(name, {})
        if isinstance(found, dict):
            return found
        self.problems.append(joined(path, name))
        return {}

    def _text(self, into: Json, name: str, value: Any, path: str) -> None:
        if isinstance(value, str) and isinstance(into.setdefault(name, _Text()), _Text):
            into[name].append(value)
        else:
            self.problems.append(joined(path, name))

    def _list(self, into: Json, name: str, value: Any, path: str) -> None:
        if isinstance(value, list) and isinstance(into.setdefault(name, LongList()), LongList):
            into[name].extend(value)
        else:
            self.problems.append(joined(path, name))

    def _once(self, into: Json, name: str, value: Any, path: str) -> None:
        """Null until it is known."""
        if value is None:
            into.setdefault(name, None)
        elif into.get(name) is not None:
            self.problems.append(joined(path, name))
        else:
            into[name] = value

    def _repeated(self, into: Json, name: str, value: Any, path: str) -> None:
        if name not in into:
            into[name] = value
        elif not same(into[name], value):
            self.problems.append(joined(path, name))


def add_column(columns: Json, name: str, value: Any) -> None:
    """Keep the hash of all values that each part of a repeated object has, one behind the other."""
    if isinstance(value, dict) and isinstance(inner := columns.setdefault(name, {}), dict):
        for part, each in value.items():
            add_column(inner, part, each)
    elif isinstance(values := columns.setdefault(name, LongList()), LongList):
        values.extend([value])
    else:
        columns[f"{name}_otherwise"] = value  # once an object, once something else: no gateway writes that


def same(one: Any, other: Any) -> bool:
    """Also of one kind: true is not 1."""
    return one is other or content_hash(one) == content_hash(other)


def _written(value: Any) -> Any:
    if isinstance(value, _Text):
        return "".join(value)
    return {name: _written(each) for name, each in value.items()} if isinstance(value, dict) else value


def _whole_choice(choice: Json) -> Json:
    """The choice as a whole answer has it."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return choice
    whole: Json = {"refusal": None} | message
    calls = message.get("tool_calls")
    if isinstance(calls, dict):
        whole["tool_calls"] = [calls[index] for index in sorted(calls)]
        whole["content"] = message.get("content") or None
    return choice | {"message": whole}
