"""The bytes that each token stands for, in tokenizers whose tokens have bytes of their own.

Those are byte-level ones, such as of GPT-2, Llama 3 and Qwen, and those of SentencePiece, whose words begin with ▁ and
whose rare characters are bytes. With them a text is its tokens' bytes, one after the other. Other tokenizers, such as
WordPiece, decide about spaces from the neighbours."""

import json
from enum import Enum, auto
from typing import Any

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
_SPACE = "\u2581"
_FALLBACK = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


class Strips(Enum):
    """Spaces at the beginning of its first token that a text loses."""

    NONE = auto()
    ONE = auto()
    ALL = auto()


class Pieces:
    def __init__(self, tokenizer: Tokenizer, *, byte_level: bool, fallback: bool, strips: "Strips") -> None:
        """`fallback`: <0x41> is a byte."""
        self._strips = strips
        self._tokenizer = tokenizer
        self._byte_level, self._fallback = byte_level, fallback
        self._known: dict[int, bytes] = {}
        found = map(tokenizer.token_to_id, _FALLBACK if fallback else ())
        self._bytes = frozenset(number for number in found if number is not None)

    @property
    def has_runs(self) -> bool:
        """Whether text falls back to byte tokens, so that only a run of them is text (gateway/text/byte_runs.py)."""
        return self._fallback

    def is_byte(self, token: int) -> bool:
        """Whether the token is part of a run of bytes."""
        return token in self._bytes

    def begin(self, text: str) -> str:
        """A text that falls back to bytes, without the space that its beginning loses."""
        return text.removeprefix(" ") if self._strips is Strips.ONE else text

    def of(self, token: int) -> bytes:
        """The bytes of a token; none for an id without a token."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._look_up(token)
        return found

    def first(self, token: int) -> bytes:
        """The bytes of the first token of a text, which loses the space that it begins with."""
        if self._strips is Strips.ONE:
            return self.of(token).removeprefix(b" ")
        return self.of(token).replace(b" ", b"") if self._strips is Strips.ALL else self.of(token)

    def _look_up(self, token: int) -> bytes:
        piece: str | None = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            known = all(letter in LETTERS for letter in piece)
            return bytes(LETTERS[letter] for letter in piece) if known else piece.encode()
        if self._fallback and piece in _FALLBACK:
            return _FALLBACK[piece]
        return piece.replace(_SPACE, " ").encode()


class PlainTexts(dict[int, str]):
    """The text of each token that is whole characters. Others have none: bytes of a run (gateway/text/byte_runs.py) and
    hidden tokens."""

    def __init__(self, pieces: Pieces | None, hidden: frozenset[int]) -> None:
        self._pieces, self._hidden = pieces, hidden

    def __missing__(self, token: int) -> str:
        found = ""
        if self._pieces is not None and token not in self._hidden and not self._pieces.is_byte(token):
            try:
                found = self._pieces.of(token).decode()
            except UnicodeDecodeError:
                found = ""
        self[token] = found
        return found


def pieces_of(tokenizer: Tokenizer) -> Pieces | None:
    """The bytes of each token; None where a text is not the sum of its tokens' bytes, or in unknown kinds."""
    if tokenizer.decoder is None:
        return None
    decoder: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return Pieces(tokenizer, byte_level=True, fallback=False, strips=Strips.NONE)
    if kinds == ["Metaspace"] and steps[0]["replacement"] == _SPACE:
        strips = Strips.NONE if steps[0]["prepend_scheme"] == "never" else Strips.ALL
        return Pieces(tokenizer, byte_level=False, fallback=False, strips=strips)
    replaced = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    stripped = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and steps[0] == replaced and steps[3:] in ([], [stripped]):
        return Pieces(tokenizer, byte_level=False, fallback=True, strips=Strips.ONE if steps[3:] else Strips.NONE)
    return None


def _byte_letters() -> dict[str, int]:
    """Byte of each printable letter in byte-level vocabularies: visible bytes stand for themselves, others from
    U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (chr(0x100 + rank) for rank in range(256))
    return {chr(byte) if byte in visible else next(hidden): byte for byte in range(256)}


LETTERS = _byte_letters()
