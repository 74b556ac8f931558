"""The text of tokenizers whose rare characters are byte tokens, such as Llama 2's: <0xE6> <0xBC> <0xA2> is 漢.

Step 8 of a request's life. Byte tokens that stand side by side are one run. As in the tokenizer's own decode a run is
text as a whole, or else every byte of it is a replacement character. So a run waits until it ends, or until it can be
no text any more."""

from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Sequence

from gateway.text.pieces import REPLACEMENT, Pieces

MOST_HELD = 64  # bytes of a run that wait: of a longer one, characters leave before its end is known
_Utf8 = getincrementaldecoder("utf-8")


class ByteRuns:
    """Joins tokens to text as they come."""

    def __init__(self, pieces: Pieces, prompts: Sequence[int], *, first: bool) -> None:
        """`prompts`: the run at the end of the prompt, which the answer may continue. `first`: the next token begins
        the text."""
        self._pieces, self._first = pieces, first
        self._held = b""
        run = b"".join(map(pieces.of, prompts))
        whole = _beginning(run)
        self._broken = whole is None  # the run that goes on is no text
        self._prompts = b"" if whole is None else run[len(whole.encode()) :]  # an incomplete character of the prompt

    def push(self, token: int) -> str:
        raw = self._pieces.of(token)
        if not raw:
            return ""
        if not self._pieces.is_byte(token):
            text = self._settle() + raw.decode()
            self._prompts, self._broken = b"", False
            return self._begin(text)
        if self._broken:
            return REPLACEMENT
        self._held += raw
        run = self._prompts + self._held
        whole = _beginning(run)
        if whole is None:
            self._broken = True
            return self._begin(self._settle())
        if len(self._held) < MOST_HELD:
            return ""
        self._held, self._prompts = run[len(whole.encode()) :], b""
        return self._begin(whole)

    @property
    def between(self) -> bool:
        return not (self._first or self._held or self._prompts or self._broken)

    def flush(self) -> str:
        return self._begin(self._settle())

    def _settle(self) -> str:
        """The text of the bytes that are held. A character that begins in the prompt belongs to the answer that
        completes it, and else to nobody."""
        held, run = self._held, self._prompts + self._held
        self._held, self._prompts = b"", b""
        return _text(run, len(held)) if held else ""

    def _begin(self, text: str) -> str:
        if self._first and text:
            self._first = False
            return self._pieces.begin(text)
        return text


def joined(pieces: Pieces, ids: Iterable[int]) -> str:
    """The text of all tokens, its first space included."""
    parts, run = list[str](), bytearray()
    for token in ids:
        raw = pieces.of(token)
        if pieces.is_byte(token):
            run += raw
        elif raw:
            parts += (_text(bytes(run), len(run)), raw.decode())
            run.clear()
    return "".join((*parts, _text(bytes(run), len(run))))


def run_at_end(pieces: Pieces, ids: Sequence[int], skipped: Callable[[int], bool]) -> int:
    """Index at which the run begins that ids end with. `skipped` tokens have no text and end no run."""
    start = len(ids)
    while start and (skipped(ids[start - 1]) or pieces.is_byte(ids[start - 1]) or not pieces.of(ids[start - 1])):
        start -= 1
    return start


def _beginning(run: bytes) -> str | None:
    """The complete characters at the beginning of a run; None where nothing that follows can make it text."""
    try:
        return _Utf8().decode(run)
    except UnicodeDecodeError:
        return None


def _text(run: bytes, shown: int) -> str:
    """The text of a whole run, of which the last `shown` bytes are replaced where it is none."""
    try:
        return run.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * shown
