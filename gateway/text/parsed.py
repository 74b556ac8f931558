"""Parts of an answer that have been read or are being read, and what both parsers share (gateway/text/answer_parser.py,
gateway/text/harmony.py)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from gateway.text.formats import ARGUMENTS_KEYS, NAME_KEY
from gateway.text.json_scan import JsonScanner, Mark

SPACE = " \t\r\n"
MAX_SPACE = 16  # white space that is held back
SLICE = 1024  # characters that are read at once, so that the cost of a long text grows with its length only


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
    behind: int | None = None  # pieces of raw text before what stands behind name and arguments; None: one is missing
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


class PartParser(ABC):
    """Feeds its states with text as long as they use some of it, and collects the parts of the call that is open."""

    def __init__(self, names: frozenset[str], *, growing: bool) -> None:
        """`names`: the tools that the client offered. `growing`: calls leave before they are whole."""
        self._names, self._growing = names, growing
        self.started = 0  # calls whose name has left
        self.count = 0  # calls that are complete
        self.seen = 0  # characters read so far
        self.reasoning_end = 0  # characters up to the end of the reasoning so far
        self._rest = ""  # what is read and not used yet
        self._raw: list[str] = []  # text of a call that has not left
        self._raw_size = 0
        self._call = OpenCall()  # a fresh one between calls
        self._out = Parsed()

    @property
    def held(self) -> int:
        """Characters at the end of what was read that have not left."""
        return self._raw_size + len(self._rest)

    def passed(self, text: str) -> None:
        """This text has left without `feed`."""
        self.seen += len(text)

    def feed(self, text: str) -> Parsed:
        for at in range(0, len(text), SLICE):
            piece = text[at : at + SLICE]
            self.seen += len(piece)
            self._rest += piece
            while self._rest and self._step():
                pass
        return self._take()

    @abstractmethod
    def _step(self) -> bool:
        """Use the rest as far as the state can; False: it waits for more text."""

    def _take(self) -> Parsed:
        out, self._out = self._out, Parsed()
        return out

    def _hold(self, size: int) -> None:
        """Take characters of the rest into the call; they are text if it turns out to be none."""
        taken, self._rest = self._rest[:size], self._rest[size:]
        if taken and (not self._call.left or self._call.behind is not None):
            self._raw.append(taken)
            self._raw_size += len(taken)

    def _argue(self, piece: str) -> None:
        """The next piece of the call's arguments."""
        call = self._call
        if not self._growing or call.name is None:
            call.arguments.append(piece)
        elif piece:
            if not call.left:
                call.left, self._raw, self._raw_size = True, [], 0
                self._start("")
            self._out.calls.append(CallPart(self.started - 1, None, piece))

    def _start(self, arguments: str) -> None:
        """The call leaves with these arguments."""
        self._out.calls.append(CallPart(self.started, self._call.name, arguments))
        self.started += 1

    def _end(self) -> None:
        """The call is complete."""
        if not self._call.left:
            self._start("".join(self._call.arguments) or "{}")
        self.count += 1
        self._drop()

    def _drop(self) -> None:
        """No call is open."""
        self._raw, self._raw_size, self._call = [], 0, OpenCall()


def open_tail(text: str, mark: str) -> int:
    """Length of the longest end of the text that begins the mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
