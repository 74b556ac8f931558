"""Splits the text of one choice, while it streams, into text, reasoning and tool calls.

The rows of gateway/text/formats.py say how a model marks them. The parser looks at each character once; of what it has
read it holds back only what may still become a mark, or a call. A call that is no call after all (no JSON, a tool that
was not offered, an answer that ends in the middle of it) is text again: nothing that the model wrote is lost. A call
whose name and arguments are whole is one, also if it breaks behind them; what is left of it is text. With `growing`, a
call leaves once its name is known and its arguments follow as they grow, as clients of streams expect; what breaks
their JSON leaves as text behind it."""

from collections.abc import Callable
from enum import Enum, auto

from gateway.text.formats import ReasoningFormat, ToolFormat
from gateway.text.json_scan import Mark, NotJson
from gateway.text.parsed import MAX_SPACE, SPACE, OpenCall, Parsed, PartParser, open_tail
from gateway.text.reasoning import ReasoningReader

MAX_NAME = 128  # characters before arguments_mark


class _State(Enum):
    REASONING = auto()  # reasoning may begin, or has begun
    BARE = auto()  # behind reasoning: a call may begin without its mark
    TEXT = auto()
    OPEN = auto()  # a call may begin with the next character
    NAME = auto()  # inside a name before arguments_mark
    OBJECT = auto()  # inside a call's JSON object
    AFTER = auto()  # behind a call: its end, a separator, or text


class AnswerParser(PartParser):
    def __init__(
        self,
        tools: ToolFormat | None,
        names: frozenset[str],
        reasoning: ReasoningFormat | None = None,
        *,
        reasoning_begun: bool = False,
        growing: bool = False,
    ) -> None:
        """`reasoning_begun`: the prompt has opened the reasoning."""
        super().__init__(names, growing=growing)
        self._tools = tools if names else None
        self._reasoning = ReasoningReader(reasoning, begun=reasoning_begun) if reasoning is not None else None
        self._strip = False  # white space is dropped until other text comes
        self._listed = False  # the call stands in a list
        self._state = _State.REASONING if reasoning is not None else self._answer_state()

    @property
    def passes_text(self) -> bool:
        """Everything is text from here on."""
        return self._state is _State.TEXT and self._tools is None and not self._strip

    def passes(self, text: str) -> bool:
        """Whether this text is nothing but text and leaves at once."""
        if self._state is not _State.TEXT or self._strip or self._rest:
            return False
        return self._tools is None or (bool(self._tools.begin) and self._tools.begin[0] not in text)

    @property
    def in_reasoning(self) -> bool:
        return self._state is _State.REASONING and self._reasoning is not None and self._reasoning.begun

    def feed(self, text: str) -> Parsed:
        if self.passes_text and not self._rest:
            self.seen += len(text)
            return Parsed(text)
        return super().feed(text)

    def finish(self) -> Parsed:
        """Everything that is held back, at the end of the answer."""
        self._finish()
        return self._take()

    def _finish(self) -> None:
        if self.in_reasoning:
            self._reason(final=True)
        elif self._state is _State.AFTER and not self._raw:
            self._rest = ""  # white space, or the beginning of an end mark
        elif self._state in (_State.OPEN, _State.NAME, _State.OBJECT):
            if self._give_up(len(self._rest)):
                while self._rest and self._step():
                    pass
                self._finish()
        else:
            self._say(self._rest)
            self._rest = ""

    def _step(self) -> bool:
        return _STEPS[self._state](self)

    def _answer_state(self) -> _State:
        return _State.BARE if self._tools is not None and self._tools.bare else _State.TEXT

    def _reason(self, *, final: bool = False) -> bool:
        reader = self._reasoning
        assert reader is not None, "only reasoning has this state"
        reasoning, self._rest = reader.read(self._rest, final=final)
        self._out.reasoning += reasoning
        if not reader.over:
            return False
        self._state, self._strip = self._answer_state(), reader.begun
        if reader.begun:
            self.reasoning_end = self.seen - len(self._rest)
        return True

    def _bare(self) -> bool:
        body = self._rest.lstrip(SPACE)
        if not body and len(self._rest) <= MAX_SPACE:
            return False
        if body.startswith("{"):
            self._begin_calls(len(self._rest) - len(body))
        else:
            self._state = _State.TEXT
        return True

    def _text(self) -> bool:
        if self._tools is None:
            self._say(self._rest)
            self._rest = ""
            return False
        begin = self._tools.begin
        at = self._rest.find(begin)
        if at >= 0:
            self._say(self._rest[:at])
            self._rest = self._rest[at:]
            self._begin_calls(len(begin))
            return True
        held = open_tail(self._rest, begin)
        self._say(self._rest[: len(self._rest) - held])
        self._rest = self._rest[len(self._rest) - held :]
        return False

    def _begin_calls(self, mark: int) -> None:
        """Calls begin behind the first `mark` characters."""
        self._hold(mark)
        self._state, self._listed = _State.OPEN, False

    def _open(self) -> bool:
        assert self._tools is not None, "calls are only read for tools"
        self._hold(len(self._rest) - len(self._rest.lstrip(SPACE)))
        if not self._rest:
            return False
        letter = self._rest[0]
        if letter == "{":
            self._call, self._state = OpenCall(), _State.OBJECT
        elif letter == "[" and self._tools.listed and not self._listed:
            self._listed = True
            self._hold(1)
        elif self._tools.arguments_mark and not self._listed:
            self._state = _State.NAME
        else:
            self._give_up(0)
        return True

    def _name(self) -> bool:
        assert self._tools is not None, "calls are only read for tools"
        name, mark, _ = self._rest.partition(self._tools.arguments_mark)
        if not mark:
            if len(name) > MAX_NAME or " " in name or "\n" in name:
                self._give_up(len(name) - open_tail(name, self._tools.begin))
                return True
            return False
        known = name.partition("[CALL_ID]")[0].strip()
        if known not in self._names:
            self._give_up(len(name) + len(mark))
            return True
        self._hold(len(name) + len(mark))
        self._call, self._state = OpenCall(name=known, is_arguments=True), _State.OBJECT
        return True

    def _object(self) -> bool:
        call, at = self._call, 0
        try:
            while at < len(self._rest):
                end, mark = call.scanner.scan(self._rest, at)
                if call.in_arguments or call.is_arguments:
                    self._argue(self._rest[at:end])
                at = end
                if mark is Mark.END:
                    self._hold(at)
                    self._complete()
                    return True
                if (
                    mark is not None
                    and not call.is_arguments
                    and not call.note(mark, self._rest[at : at + 1], self._names)
                ):
                    self._give_up(at)
                    return True
                if mark is Mark.VALUE_END:
                    call.has_arguments |= call.in_arguments
                    call.in_arguments = False
                    if call.behind is None and call.name is not None and call.has_arguments:
                        self._hold(at)
                        at, call.behind = 0, len(self._raw)
        except NotJson as error:
            if call.left and call.behind is None:
                self._argue(self._rest[at : error.at])
            self._give_up(error.at)
            return True
        self._hold(at)
        return False

    def _complete(self) -> None:
        if self._call.name is None:
            self._give_up(0)
            return
        self._end()
        self._state = _State.AFTER

    def _after(self) -> bool:
        assert self._tools is not None, "calls are only read for tools"
        tools, self._rest = self._tools, self._rest.lstrip(SPACE)
        if not self._rest:
            return False
        if self._listed and self._rest[0] == "]":
            self._rest, self._listed = self._rest[1:], False
        elif tools.separator and self._rest[0] == tools.separator and (self._listed or not tools.listed):
            self._hold(1)
            self._state = _State.OPEN
        elif tools.end and tools.end.startswith(self._rest):
            if self._rest != tools.end:
                return False
            self._rest, self._state, self._strip = "", _State.TEXT, True
        else:
            self._rest = self._rest.removeprefix(tools.end) if tools.end else self._rest
            self._state, self._strip = _State.TEXT, True
        return True

    def _give_up(self, size: int) -> bool:
        """Turn into text all that looked like a call, and `size` characters of the rest. True: it is one all the same,
        since its name and arguments are whole, and what stands behind them is read as behind a call."""
        self._hold(size)
        if self._call.behind is not None:
            self._rest = "".join(self._raw[self._call.behind :]) + self._rest
            self._complete()
            return True
        shown = "" if self._call.left else "".join(self._raw)
        self._drop()
        self._state = _State.TEXT
        self._say(shown)
        return False

    def _say(self, text: str) -> None:
        if self._strip:
            text = text.lstrip(SPACE)
            self._strip = not text
        self._out.text += text


_STEPS: dict[_State, Callable[[AnswerParser], bool]] = {
    _State.REASONING: AnswerParser._reason,
    _State.BARE: AnswerParser._bare,
    _State.TEXT: AnswerParser._text,
    _State.OPEN: AnswerParser._open,
    _State.NAME: AnswerParser._name,
    _State.OBJECT: AnswerParser._object,
    _State.AFTER: AnswerParser._after,
}
