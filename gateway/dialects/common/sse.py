"""Server-sent events of streamed answers: the constant parts of a frame are rendered once per request.

For a token only its text is encoded, and its logprobs if the client wants them; the rest of the frame is ready."""

from collections.abc import Mapping

import msgspec

encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"
_END = b"}\n\n"  # bytes at the end of every frame
_GOES_ON = b',"finish_reason":null}]}\n\n'  # bytes at the end of a frame behind which others of its choice follow
NOTHING: Mapping[str, object] = {}


def frame(value: object) -> bytes:
    return b"data: " + encode(value) + b"\n\n"


def with_member(frame: bytes, name: str, value: object) -> bytes:
    """The frame with one more member at the end of its object."""
    return frame[: -len(_END)] + b"," + encode({name: value})[1:-1] + _END


class Frames:
    """The frames of one streamed request. A subclass knows where its kind of object has the text."""

    BEFORE_TEXT: bytes  # between a choice's index and its text
    BEHIND_TEXT: bytes  # between its text and its logprobs
    NO_TEXT: bytes  # in place of a text

    def __init__(self, *, id: str, kind: str, created: int, model: str) -> None:
        head = encode({"id": id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + head[:-1] + b',"choices":['
        self._starts: dict[int, bytes] = {}

    def start(self, index: int) -> bytes:
        """The beginning of a frame, up to and including the choice's index."""
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = self._head + b'{"index":%d,' % index
        return start

    def empty(self) -> bytes:
        """A frame without choices; members can be added to it."""
        return self._head + b"]}\n\n"

    def around_text(self, index: int) -> tuple[bytes, bytes]:
        """The bytes before and behind the text of a plain token in its frame."""
        return self.start(index) + self.BEFORE_TEXT, self.BEHIND_TEXT + b"null" + _GOES_ON

    def text(self, index: int, text: str, logprobs: object | None, also: Mapping[str, object] = NOTHING) -> bytes:
        """`also`: further members of the choice."""
        middle = b"null" if logprobs is None else encode(logprobs)
        if also:
            middle += b"," + encode(also)[1:-1]
        return b"".join((self.start(index), self.BEFORE_TEXT, encode(text), self.BEHIND_TEXT, middle, _GOES_ON))

    def finish(self, index: int, end: dict[str, object], fingerprint: str) -> bytes:
        tail = self.NO_TEXT + b',"logprobs":null,' + encode(end)[1:]
        return self.start(index) + tail + b'],"system_fingerprint":' + encode(fingerprint) + _END

    def usage(self, usage: object, timings: object) -> bytes:
        return self._head + b'],"usage":' + encode(usage) + b',"timings":' + encode(timings) + b"}\n\n"


class ChatFrames(Frames):
    BEFORE_TEXT, BEHIND_TEXT, NO_TEXT = b'"delta":{"content":', b'},"logprobs":', b'"delta":{}'

    def role(self, index: int) -> bytes:
        """The first frame of a choice."""
        return self.start(index) + b'"delta":{"role":"assistant","content":""},"logprobs":null' + _GOES_ON

    def delta(self, index: int, delta: dict[str, object]) -> bytes:
        """A frame of tool calls or reasoning."""
        return self.start(index) + b'"delta":' + encode(delta) + b',"logprobs":null' + _GOES_ON


class CompletionFrames(Frames):
    BEFORE_TEXT, BEHIND_TEXT, NO_TEXT = b'"text":', b',"logprobs":', b'"text":""'
