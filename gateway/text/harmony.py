"""Splits the text of one choice, while it streams, into text, reasoning and tool calls, for models that write messages
in channels, as gpt-oss does ("harmony").

A message is a header, `<|message|>`, its body and a mark that ends it. The header names the channel and whom the
message is for: `analysis` is reasoning, a message to `functions.NAME` is a call of a tool that was offered, and every
other one is text. The prompt ends with the beginning of the first header. Text that has no header is text, a header in
which the answer ends is dropped, and what is no call after all (no JSON, a tool that was not offered) is text with its
header: nothing else that the model wrote is lost. The parser has the methods of gateway/text/answer_parser.py."""

import re
from collections.abc import Callable
from enum import Enum, auto

from gateway.text.formats import HARMONY_MARKS
from gateway.text.json_scan import Mark, NotJson
from gateway.text.parsed import SPACE, OpenCall, Parsed, PartParser, open_tail

MAX_HEADER = 512  # characters of a header; what is longer is text
_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_BEHIND = (*_ENDS, _START, _CHANNEL)  # marks behind a body
_INSIDE = (_CHANNEL, "<|constrain|>")  # marks inside a header
_FIRST = (_CHANNEL, _START, _MESSAGE, "<|constrain|>", " to=")  # beginnings of the first header
_ANY = re.compile("|".join(map(re.escape, HARMONY_MARKS)))
_NAME = re.compile(r"[\w.-]*")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_PEOPLE = ("assistant", "user", "all")  # recipients that are no tools
_BETWEEN = "\n\n"  # between the bodies of two messages of one kind


class _State(Enum):
    FIRST = auto()  # nothing is read yet
    HEADER = auto()
    BODY = auto()  # text or reasoning
    CALL = auto()  # arguments of a call
    BEHIND = auto()  # behind a message


class HarmonyParser(PartParser):
    def __init__(
        self, names: frozenset[str], *, reasons: bool = True, reasoning_begun: bool = False, growing: bool = False
    ) -> None:
        """`reasons`: the analysis is reasoning, not text. `reasoning_begun`: the prompt has opened it."""
        super().__init__(names, growing=growing)
        self._reasons = reasons
        self._thinks = reasoning_begun and reasons  # the body is reasoning
        self._said, self._due = {False: False, True: False}, False  # by `_thinks`; a separator is due before the body
        self._state = _State.BODY if reasoning_begun else _State.FIRST

    @property
    def passes_text(self) -> bool:
        """Everything is text from here on: never, since each mark may begin another message."""
        return False

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.BODY and self._thinks

    def passes(self, text: str) -> bool:
        """Whether this text is nothing but text and leaves at once."""
        return self._state is _State.BODY and not (self._thinks or self._due or self._rest) and "<" not in text

    def passed(self, text: str) -> None:
        super().passed(text)
        self._said[False] = True

    def finish(self) -> Parsed:
        """Everything that is held back, at the end of the answer."""
        if self._state is _State.CALL:
            self._give_up(len(self._rest))
        elif self._state in (_State.FIRST, _State.BODY) or (self._state is _State.HEADER and "<" not in self._rest):
            self._say(self._rest)
        self._rest = ""  # else a header, or the beginning of a mark
        return self._take()

    def _step(self) -> bool:
        return _STEPS[self._state](self)

    def _first(self) -> bool:
        if self._rest.startswith(_FIRST):
            self._state = _State.HEADER
        elif any(mark.startswith(self._rest) for mark in _FIRST):
            return False
        else:
            self._begin(thinks=False)
        return True

    def _header(self) -> bool:
        first = _ANY.match(self._rest)
        begin = first.end() if first is not None and first[0] != _MESSAGE else 0
        place = next((found for found in _ANY.finditer(self._rest, begin) if found[0] not in _INSIDE), None)
        if place is None and len(self._rest) <= MAX_HEADER:
            return False
        if place is None or place.start() > MAX_HEADER:
            self._begin(thinks=False)
            self._say_raw(begin)
            return True
        head = self._rest[: place.start()]
        if place[0] != _MESSAGE:  # no header after all
            self._begin(thinks=False)
            self._say_raw(place.start())
            return True
        channel = _NAME.match(head.partition(_CHANNEL)[2].lstrip(SPACE))
        recipient = found[1] if (found := _RECIPIENT.search(head)) is not None and found[1] not in _PEOPLE else ""
        tool = recipient.removeprefix("functions.")
        if recipient and tool in self._names:
            self._hold(place.end())
            self._call, self._state = OpenCall(name=tool, is_arguments=True), _State.CALL
            return True
        self._begin(thinks=self._reasons and not recipient and channel is not None and channel[0] == "analysis")
        if recipient:  # a tool that was not offered
            self._say_raw(place.end())
        else:
            self._rest = self._rest[place.end() :]
        return True

    def _body(self) -> bool:
        places = [at for mark in _BEHIND if (at := self._rest.find(mark)) >= 0]
        if places:
            self._say_raw(min(places))
            if self._thinks:
                self.reasoning_end = self.seen - len(self._rest)
            self._state = _State.BEHIND
            return True
        self._say_raw(len(self._rest) - max(open_tail(self._rest, mark) for mark in _BEHIND))
        return False

    def _arguments(self) -> bool:
        call, at = self._call, 0
        if not call.arguments and not call.left and self._no_arguments():
            return bool(self._rest) and self._state is not _State.CALL
        try:
            while at < len(self._rest):
                end, mark = call.scanner.scan(self._rest, at)
                self._argue(self._rest[at:end])
                at = end
                if mark is Mark.END:
                    self._hold(at)
                    self._complete()
                    return True
        except NotJson as error:
            if call.left:
                self._argue(self._rest[at : error.at])
            self._give_up(error.at)
            return True
        self._hold(at)
        return False

    def _no_arguments(self) -> bool:
        """Whether the body ends, or may end, before any argument. A call without a body has no arguments."""
        body = self._rest.lstrip(SPACE)
        self._hold(len(self._rest) - len(body))
        if body and not body.startswith("<"):
            return False
        if body.startswith(_BEHIND):
            self._complete()
            return True
        return not body or any(mark.startswith(body) for mark in _BEHIND)

    def _complete(self) -> None:
        self._end()
        self._state = _State.BEHIND

    def _behind(self) -> bool:
        self._rest = self._rest.lstrip(SPACE)
        if self._rest.startswith((_START, _CHANNEL)):
            self._state = _State.HEADER
        elif self._rest.startswith(_ENDS):
            self._rest = self._rest[self._rest.index("|>") + 2 :]
        elif any(mark.startswith(self._rest) for mark in _BEHIND):
            return False
        else:
            self._begin(thinks=False)
        return True

    def _begin(self, *, thinks: bool) -> None:
        """A body begins, or what has no header."""
        self._state, self._thinks, self._due = _State.BODY, thinks, self._said[thinks]

    def _give_up(self, size: int) -> None:
        """Turn into text all that looked like a call, and `size` characters of the rest."""
        shown = "" if self._call.left else "".join(self._raw)
        if self._call.left:
            self._rest = self._rest[size:]
            size = 0
        self._drop()
        self._begin(thinks=False)
        self._say(shown)
        self._say_raw(size)

    def _say_raw(self, size: int) -> None:
        self._say(self._rest[:size])
        self._rest = self._rest[size:]

    def _say(self, text: str) -> None:
        if not text:
            return
        text, self._due = (_BETWEEN if self._due else "") + text, False
        self._said[self._thinks] = True
        if self._thinks:
            self._out.reasoning += text
        else:
            self._out.text += text


_STEPS: dict[_State, Callable[[HarmonyParser], bool]] = {
    _State.FIRST: HarmonyParser._first,
    _State.HEADER: HarmonyParser._header,
    _State.BODY: HarmonyParser._body,
    _State.CALL: HarmonyParser._arguments,
    _State.BEHIND: HarmonyParser._behind,
}
