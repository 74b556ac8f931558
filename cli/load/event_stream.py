"""Parses server-sent events from pieces of a body, wherever the pieces are cut."""

import re

EVENT_BYTES = 1 << 24  # longer events are refused: a server without line ends would fill the memory

_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLong(Exception):
    """A server sends more than EVENT_BYTES without the end of an event."""


class EventParser:
    def __init__(self) -> None:
        self._rest = bytearray()  # the beginning of a line
        self._searched = 0  # bytes of it that hold no line end
        self._data: list[bytes] = []  # lines of the event under way
        self._size = 0
        self._after_cr = False  # the last piece ended with CR: an LF at the beginning of the next belongs to it

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that this piece completes. An event is complete at its blank line."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        self._rest += piece
        events = list[bytes]()
        begin = 0
        while match := _LINE_END.search(self._rest, max(begin, self._searched)):
            self._line(bytes(self._rest[begin : match.start()]), events)
            begin = match.end()
            self._after_cr = match[0] == b"\r" and begin == len(self._rest)
        del self._rest[:begin]
        self._searched = len(self._rest)
        if len(self._rest) + self._size > EVENT_BYTES:
            raise EventTooLong
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
            self._data, self._size = [], 0
            return
        name, _, value = line.partition(b":")
        if name == b"data":  # other fields and comments carry nothing for us
            self._data.append(value.removeprefix(b" "))
            self._size += len(value)
