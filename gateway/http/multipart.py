"""Reads a form with files (multipart/form-data) as it comes: no part of it is held, whatever its size."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mesh.errors import InvalidRequest, UnsupportedMedia, brief

MOST_HEAD = 16 * 1024  # bytes of a part's headers
MOST_PARTS = 32
_BOUNDARY = re.compile(rb'boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', re.IGNORECASE)
_PARAMETER = re.compile(rb';\s*(name|filename)=(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormPart:
    """A part begins."""

    name: str
    filename: str | None  # None: a field


class _Within(Enum):
    BETWEEN = 1  # before a part, behind its boundary
    HEAD = 2
    BODY = 3
    END = 4  # behind the last boundary


class MultipartReader:
    """`feed` yields the parts that begin, and the bytes of the part that began last."""

    def __init__(self, content_type: bytes) -> None:
        found = _BOUNDARY.search(content_type)
        if content_type.split(b";")[0].strip().lower() != b"multipart/form-data" or found is None:
            given = brief(content_type.decode("latin-1"))
            raise UnsupportedMedia(f"content-type is {given!r}; it must be multipart/form-data with a boundary")
        self._delimiter = b"\r\n--" + (found[1] or found[2])
        self._held = bytearray(b"\r\n")  # the first boundary may stand at the very beginning
        self._within, self._parts = _Within.BODY, 0
        self._skips = True  # what stands before the first boundary

    def feed(self, data: bytes) -> Iterator[FormPart | bytes]:
        self._held += data
        while True:
            if self._within is _Within.BODY:
                at = self._held.find(self._delimiter)
                ready = at if at >= 0 else max(0, len(self._held) - len(self._delimiter) + 1)
                if ready and not self._skips:
                    yield bytes(self._held[:ready])
                del self._held[: ready if at < 0 else at + len(self._delimiter)]
                if at < 0:
                    return
                self._within, self._skips = _Within.BETWEEN, False
            elif self._within is _Within.BETWEEN:
                if len(self._held) < 2:
                    return
                mark = bytes(self._held[:2])
                if mark not in (b"--", b"\r\n"):
                    raise InvalidRequest(None, "the form is broken: a boundary is followed by something else")
                del self._held[:2]
                self._within = _Within.END if mark == b"--" else _Within.HEAD
            elif self._within is _Within.HEAD:
                if (part := self._head()) is None:
                    return
                yield part
                self._within = _Within.BODY
            else:
                self._held.clear()
                return

    def close(self) -> None:
        """The body is over; raises where the form is not."""
        if self._within is not _Within.END:
            raise InvalidRequest(None, "the form is broken: its last boundary is missing")

    def _head(self) -> FormPart | None:
        end = self._held.find(b"\r\n\r\n")
        if (end if end >= 0 else len(self._held)) > MOST_HEAD:
            raise InvalidRequest(None, f"the form is broken: a part has more than {MOST_HEAD} bytes of headers")
        if end < 0:
            return None
        lines = bytes(self._held[:end]).split(b"\r\n")
        del self._held[: end + 4]
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(None, f"the form has more than {MOST_PARTS} parts")
        for line in lines:
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"content-disposition":
                found = {key.lower(): _text(quoted or plain) for key, quoted, plain in _PARAMETER.findall(value)}
                if b"name" in found:
                    return FormPart(found[b"name"], found.get(b"filename"))
        raise InvalidRequest(None, "the form is broken: a part has no name")


def _text(quoted: bytes) -> str:
    return re.sub(rb"\\(.)", rb"\1", quoted).decode(errors="replace")
