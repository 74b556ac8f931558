"""The messages of a chat as templates take them, built piece by piece in the order in which a client wrote them.

Other chat APIs write what an assistant said, thought and called as separate items or blocks; templates want one message
for each turn. A result names a call before it, or it is refused by its path."""

from typing import Any

from mesh.errors import InvalidRequest, brief

Json = dict[str, Any]


class Transcript:
    def __init__(self) -> None:
        self.paths: list[str] = []  # where the client wrote each message
        self._messages: list[Json] = []
        self._said: list[str] = []  # pieces of the last message's content, joined when it ends
        self._thought: list[str] = []  # likewise of its reasoning
        self._called = set[str]()

    def messages(self) -> list[Json]:
        """All messages so far."""
        self._end()
        return self._messages

    def system(self, text: str, path: str) -> None:
        """Templates have room for one system message at the beginning, so those in front become one."""
        if self._role != "system" or len(self._messages) > 1:
            self._begin("system", path)
        self._say(text, "\n\n")

    def user(self, text: str, path: str, *, joined: bool = False) -> None:
        """`joined`: texts of users that follow each other become one message."""
        if self._role != "user" or not joined:
            self._begin("user", path)
        self._say(text, "\n")

    def said(self, text: str, path: str, *, between: str) -> None:
        """`between` stands between two texts of one turn; behind a call it is a new line."""
        turn = self._assistant(path)
        self._say(text, "\n" if "tool_calls" in turn else between)

    def thought(self, text: str, path: str) -> None:
        self._assistant(path)
        if text:
            self._thought += ["\n", text] if self._thought else [text]

    def called(self, id: str, name: str, arguments: Json, path: str) -> None:
        call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant(path).setdefault("tool_calls", []).append(call)
        self._called.add(id)

    def result(self, id: str, text: str, path: str, id_path: str) -> None:
        """The result of a call; `id_path` is the field that names the call."""
        if id not in self._called:
            raise InvalidRequest(id_path, f"{id_path} is {brief(repr(id))}, and no call before it has this id")
        self._begin("tool", path)["tool_call_id"] = id
        self._say(text, "")

    @property
    def _role(self) -> str:
        return str(self._messages[-1]["role"]) if self._messages else ""

    def _assistant(self, path: str) -> Json:
        """The assistant's turn at the end."""
        return self._messages[-1] if self._role == "assistant" else self._begin("assistant", path)

    def _begin(self, role: str, path: str) -> Json:
        self._end()
        self._said, self._thought = [], []
        self._messages.append({"role": role})
        self.paths.append(path)
        return self._messages[-1]

    def _say(self, text: str, between: str) -> None:
        if text:
            self._said += [between, text] if self._said else [text]

    def _end(self) -> None:
        """The last message gets its pieces, which stay: more of them may come."""
        if self._messages:
            self._messages[-1]["content"] = "".join(self._said)
            if self._thought:
                self._messages[-1]["reasoning"] = "".join(self._thought)
