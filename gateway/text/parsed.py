"""Parts of an answer that gateway/text/answer_parser.py has read or is reading."""

from dataclasses import dataclass, field

from gateway.text.formats import ARGUMENTS_KEYS, NAME_KEY
from gateway.text.json_scan import JsonScanner, Mark

SPACE = " \t\r\n"
MAX_SPACE = 16  # white space that is held back


@dataclass(frozen=True, slots=True)
class CallPart:
    """A piece of one call: the first has the name, the others continue the arguments."""

    index: int  # number of the call in its choice, from 0
    name: str | None
    arguments: str


@dataclass(slots=True)
class Parsed:
    """The text, reasoning and calls that one piece of the answer has completed."""

    text: str = ""
    reasoning: str = ""
    calls: list[CallPart] = field(default_factory=list)


@dataclass(slots=True)
class OpenCall:
    """The call that is being read."""

    name: str | None = None
    is_arguments: bool = False  # the object is the arguments
    in_arguments: bool = False
    has_arguments: bool = False
    left: bool = False  # its name has left
    arguments: list[str] = field(default_factory=list)
    scanner: JsonScanner = field(default_factory=JsonScanner)

    def note(self, mark: Mark, letter: str, names: frozenset[str]) -> bool:
        """Note a field of the object; False: it is no call of a tool with one of these names. `letter`: the first of
        the value."""
        if mark is Mark.VALUE_END:
            if self.scanner.key == NAME_KEY:
                self.name = self.scanner.string
                return self.name in names
            return True
        if self.scanner.key in ARGUMENTS_KEYS:
            if letter != "{" or self.has_arguments:
                return False
            self.in_arguments = True
        return self.scanner.key != NAME_KEY or self.name is None


def open_tail(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
