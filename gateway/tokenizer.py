"""Text to token ids and back: the tokenizer of the model's folder, and a detokenizer that streams.

The detokenizer yields exactly the text that new tokens add: never a piece of the prompt, never half a character, and at
the end whatever was held back. It decodes a short window of ids, so its cost does not grow with the answer."""

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
WINDOW = 8  # ids of the prompt that may become context
CHARACTER = 4  # ids that one character may be spread over
HELD = 3  # replacement characters at the end that may still become one character
PENDING = 64  # ids without a complete character; then what there is leaves as it is
SHRINKS = 4  # times, that normalizing may make a text shorter
REPLAY = 32  # ids of an answer to be continued that settle what its end still holds back


class ModelTokenizer:
    """The tokenizer, with what the front door asks of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def most_characters(self, tokens: int) -> int:
        """Of a text that could be so few tokens, at the very most: longer ones need not be looked at."""
        return SHRINKS * self._longest * tokens

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: add what the model expects around plain text; a chat template has it already."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_text(self, token: int) -> str:
        """One token alone, special ones included; half a character shows as a replacement character."""
        return self.decode((token,), skip_special=False)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for, also where they are no whole character."""
        piece: str | None = self._tokenizer.id_to_token(token)
        text = self.token_text(token)
        if piece is None or REPLACEMENT not in text:
            return text.encode()
        if piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:-1], 16)])
        if all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        return text.encode()


class Detokenizer:
    """The text of one choice, token by token."""

    def __init__(
        self, tokens: ModelTokenizer, prompt: Sequence[int], emitted: Sequence[int] = (), *, skip_special: bool = True
    ) -> None:
        self._tokens = tokens
        self._skip_special = skip_special
        self._context: list[int] = []  # ids whose text is complete and out
        self._base = ""  # their text
        self._pending: list[int] = []  # ids since
        self._sent = 0  # characters of the pending ids' text that are out
        self._prompts = ""  # text at the start of the pending ids that belongs to the prompt
        replayed = emitted[-REPLAY:]
        before = emitted[: len(emitted) - len(replayed)][-2 * WINDOW :]
        self._prime([*prompt[-2 * WINDOW :], *before])
        for token in replayed:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that this token completes; often, not always, its own."""
        self._pending.append(token)
        text = self._text()
        tail = len(text) - len(text.rstrip(REPLACEMENT))
        start = self._start(text)
        if tail == 0 or len(self._pending) >= PENDING:
            self._settle(text, complete=tail == 0)
            return text[start:]
        self._sent = max(start, len(text) - min(tail, HELD))
        return text[start : self._sent]

    def flush(self) -> str:
        """What was held back, at the end of the answer."""
        text = self._text() if self._pending else ""
        start = self._start(text)
        self._settle(text, complete=False)
        return text[start:]

    def _prime(self, ids: list[int]) -> None:
        """Take as context the end of `ids` that decodes to whole characters; ids after it wait for their character."""
        for end in range(len(ids), max(len(ids) - CHARACTER, 0), -1):
            for start in range(max(end - WINDOW, 0), end):
                text = self._decode(ids[start:end])
                if text and text[0] != REPLACEMENT and text[-1] != REPLACEMENT:
                    self._context, self._base, self._pending = ids[start:end], text, ids[end:]
                    self._prompts = self._text() if self._pending else ""
                    return

    def _start(self, text: str) -> int:
        """Where the new text begins. A character that the prompt left open is the answer's once it is whole."""
        return max(self._sent, len(self._prompts) if text.startswith(self._prompts) else 0)

    def _text(self) -> str:
        """Of the pending ids, in their context as long as the decoder does not change what is out already."""
        whole = self._decode(self._context + self._pending)
        if whole.startswith(self._base):
            return whole[len(self._base) :]
        return self._decode(self._pending)

    def _settle(self, text: str, *, complete: bool) -> None:
        if not complete:
            self._context, self._base = [], ""
        elif text:
            self._context, self._base = self._pending, self._decode(self._pending)
        elif len(self._context) < PENDING:  # ids without text, yet a first word's space may hang on them
            self._context = self._context + self._pending
            self._base = self._decode(self._context)
        self._pending = []
        self._sent = 0
        self._prompts = ""

    def _decode(self, ids: list[int]) -> str:
        return self._tokens.decode(ids, skip_special=self._skip_special) if ids else ""


def _byte_letters() -> dict[str, int]:
    """The printable stand-in of each byte in byte-level vocabularies: itself where visible, else from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (chr(0x100 + rank) for rank in range(256))
    return {chr(byte) if byte in visible else next(hidden): byte for byte in range(256)}


_BYTES = _byte_letters()
