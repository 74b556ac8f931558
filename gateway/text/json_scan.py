"""Checks one JSON object while its text arrives in pieces, and marks the fields of the object itself.

gateway/text/answer_parser.py reads tool calls with it: the name may be used, and the arguments may leave, before the
object ends. Each character is looked at once. Text that is no JSON is an error at the character that breaks it."""

import json
import re
from enum import Enum, auto

MAX_DEPTH = 128
MAX_SCALAR = 400  # characters of a number
_RUN = re.compile(r'[^"\\\x00-\x1f]*')
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")


class NotJson(ValueError):
    """The text is no JSON object; `at` is the position of the character that breaks it."""

    def __init__(self, at: int) -> None:
        super().__init__(f"no JSON at character {at}")
        self.at = at


class Mark(Enum):
    """Places at which the scanner stops; always a field of the outer object."""

    VALUE = auto()  # the next character begins the value of `key`
    VALUE_END = auto()  # the value of `key` has ended before the position
    END = auto()  # the object has ended before the position


class _Expect(Enum):
    OPEN = auto()  # the outer object's {
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    VALUE_OR_END = auto()  # after [
    NEXT = auto()  # after a value: a comma or the end of the container
    STRING = auto()  # inside a string
    ESCAPE = auto()  # after a backslash
    HEX = auto()  # inside the digits of an escaped character
    WORD = auto()  # inside a number, true, false or null


class JsonScanner:
    def __init__(self) -> None:
        self.key = ""  # key of the outer object's current field
        self.string: str | None = None  # the current field's value if it was a string, once it has ended
        self._expect = _Expect.OPEN
        self._closing: list[str] = []  # closing brackets that are due, the outer one first
        self._is_key = False  # the string that is being read is a key
        self._raw: list[str] = []  # text of a string of the outer object, or of a number
        self._digits = 0  # digits of an escaped character that are due
        self._announced = False  # VALUE was returned for the coming value

    def scan(self, text: str, at: int) -> tuple[int, Mark | None]:
        """Read from `at` up to the next mark, or to the end of the text. Raises NotJson."""
        while at < len(text):
            match self._expect:
                case _Expect.STRING:
                    at, mark = self._string(text, at)
                case _Expect.ESCAPE:
                    at, mark = self._escape(text, at), None
                case _Expect.HEX:
                    at, mark = self._hex(text, at), None
                case _Expect.WORD:
                    at, mark = self._word(text, at)
                case _:
                    at = _end(_SPACE, text, at)
                    if at == len(text):
                        break
                    if self._at_value():
                        self._announced = True
                        return at, Mark.VALUE
                    at, mark = self._structure(text, at)
            if mark is not None:
                return at, mark
        return at, None

    def _at_value(self) -> bool:
        return self._expect is _Expect.VALUE and len(self._closing) == 1 and not self._announced

    def _structure(self, text: str, at: int) -> tuple[int, Mark | None]:
        letter, expect = text[at], self._expect
        if expect in (_Expect.KEY, _Expect.KEY_OR_END) and letter == '"':
            self._begin_string(is_key=True)
        elif expect is _Expect.COLON and letter == ":":
            self._expect = _Expect.VALUE
        elif expect is _Expect.NEXT and letter == ",":
            self._expect = _Expect.KEY if self._closing[-1] == "}" else _Expect.VALUE
        elif letter in "}]" and self._closing and self._closing[-1] == letter and expect in _MAY_END:
            self._closing.pop()
            return at + 1, self._value_ended() if self._closing else Mark.END
        elif expect not in (_Expect.VALUE, _Expect.VALUE_OR_END, _Expect.OPEN):
            raise NotJson(at)
        elif letter == "{" or (letter == "[" and expect is not _Expect.OPEN):
            if len(self._closing) == MAX_DEPTH:
                raise NotJson(at)
            self._closing.append("}" if letter == "{" else "]")
            self._expect = _Expect.KEY_OR_END if letter == "{" else _Expect.VALUE_OR_END
        elif expect is _Expect.OPEN:
            raise NotJson(at)
        elif letter == '"':
            self._begin_string(is_key=False)
        elif letter in "-0123456789tfn":
            self._expect, self._raw = _Expect.WORD, []
            return at, None
        else:
            raise NotJson(at)
        return at + 1, None

    def _begin_string(self, *, is_key: bool) -> None:
        self._expect = _Expect.STRING
        self._is_key = is_key
        self._raw = []

    def _string(self, text: str, at: int) -> tuple[int, Mark | None]:
        end = _end(_RUN, text, at)
        self._keep(text[at:end])
        if end == len(text):
            return end, None
        if text[end] == "\\":
            self._keep("\\")
            self._expect = _Expect.ESCAPE
            return end + 1, None
        if text[end] != '"':
            raise NotJson(end)
        if not self._is_key:
            return end + 1, self._value_ended(string=True)
        self._expect = _Expect.COLON
        if len(self._closing) == 1:
            self.key = self._unescaped()
            self.string = None
            self._announced = False
        return end + 1, None

    def _escape(self, text: str, at: int) -> int:
        if text[at] not in '"\\/bfnrtu':
            raise NotJson(at)
        self._expect, self._digits = (_Expect.HEX, 4) if text[at] == "u" else (_Expect.STRING, 0)
        self._keep(text[at])
        return at + 1

    def _hex(self, text: str, at: int) -> int:
        if text[at] not in "0123456789abcdefABCDEF":
            raise NotJson(at)
        self._keep(text[at])
        self._digits -= 1
        if self._digits == 0:
            self._expect = _Expect.STRING
        return at + 1

    def _word(self, text: str, at: int) -> tuple[int, Mark | None]:
        end = _end(_WORD, text, at)
        self._raw.append(text[at:end])
        if sum(map(len, self._raw)) > MAX_SCALAR:
            raise NotJson(at)
        if end == len(text):
            return end, None
        if not _SCALAR.fullmatch("".join(self._raw)):
            raise NotJson(at)
        return end, self._value_ended()

    def _value_ended(self, *, string: bool = False) -> Mark | None:
        self._expect = _Expect.NEXT
        if len(self._closing) != 1:
            return None
        self.string = self._unescaped() if string else None
        return Mark.VALUE_END

    def _keep(self, text: str) -> None:
        if len(self._closing) == 1:
            self._raw.append(text)

    def _unescaped(self) -> str:
        return str(json.loads(f'"{"".join(self._raw)}"'))


_MAY_END = (_Expect.KEY_OR_END, _Expect.VALUE_OR_END, _Expect.NEXT)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "the pattern matches the empty text"
    return found.end()
