"""Text to token ids and back: the tokenizer of the model's folder, and a detokenizer that streams.

Steps 1 and 8 of a request's life. The detokenizer yields exactly the text that new tokens add: never a piece of the
prompt, never half a character, and at the end all the text that it held back. It decodes a short window of ids, so its
cost does not grow with the answer."""

from collections.abc import Sequence

from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
WINDOW = 8  # ids of the prompt that may become context of the answer
CHARACTER = 4  # ids that one character may span
HELD = 3  # replacement characters at the end that may still become one character
PENDING = 64  # ids without a complete character, after which their text leaves as it is
SHRINKS = 4  # factor by which normalizing may shorten a text
REPLAY = 32  # last ids of a continued answer, replayed to restore what its end held back


class ModelTokenizer:
    """The model's tokenizer, with the few operations that a front door needs."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)

    def most_characters(self, tokens: int) -> int:
        """Upper bound for the characters of a text of so many tokens; a longer text has more tokens."""
        return SHRINKS * self._longest * tokens

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: add the tokens that the model expects around plain text; a chat template has them already. Other
        threads run meanwhile: of the library's methods, only those for batches let them."""
        return tuple(self._tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_text(self, token: int) -> str:
        """Text of one token, special tokens included; half a character shows as a replacement character."""
        return self.decode((token,), skip_special=False)

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token stands for, also where they are no whole character."""
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
        self,
        tokenizer: ModelTokenizer,
        prompt: Sequence[int],
        emitted: Sequence[int] = (),
        *,
        skip_special: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._context: list[int] = []  # ids whose text is complete and has left
        self._base = ""  # text of the context ids
        self._pending: list[int] = []  # ids after the context
        self._sent = 0  # characters of the pending ids' text that have left
        self._prompts = ""  # text at the start of the pending ids that belongs to the prompt
        replayed = emitted[-REPLAY:]
        before = emitted[: len(emitted) - len(replayed)][-2 * WINDOW :]
        self._prime([*prompt[-2 * WINDOW :], *before])
        for token in replayed:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that this token completes; often, but not always, its own."""
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
        """The text that is held back, at the end of the answer."""
        text = self._text() if self._pending else ""
        start = self._start(text)
        self._settle(text, complete=False)
        return text[start:]

    def _prime(self, ids: list[int]) -> None:
        """Take the last ids that decode to whole characters as context; ids after them wait for their character."""
        for end in range(len(ids), max(len(ids) - CHARACTER, 0), -1):
            for start in range(max(end - WINDOW, 0), end):
                text = self._decode(ids[start:end])
                if text and text[0] != REPLACEMENT and text[-1] != REPLACEMENT:
                    self._context, self._base, self._pending = ids[start:end], text, ids[end:]
                    self._prompts = self._text() if self._pending else ""
                    return

    def _start(self, text: str) -> int:
        """Where the new text begins. A character that begins in the prompt belongs to the answer that completes it."""
        return max(self._sent, len(self._prompts) if text.startswith(self._prompts) else 0)

    def _text(self) -> str:
        """Text of the pending ids; decoded with their context unless the decoder would change text that has left."""
        whole = self._decode(self._context + self._pending)
        if whole.startswith(self._base):
            return whole[len(self._base) :]
        return self._decode(self._pending)

    def _settle(self, text: str, *, complete: bool) -> None:
        if not complete:
            self._context, self._base = [], ""
        elif text:
            self._context, self._base = self._pending, self._decode(self._pending)
        elif len(self._context) < PENDING:  # ids without text, yet the space before the next word may depend on them
            self._context = self._context + self._pending
            self._base = self._decode(self._context)
        self._pending = []
        self._sent = 0
        self._prompts = ""

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=self._skip_special) if ids else ""


def _byte_letters() -> dict[str, int]:
    """Byte of each printable letter in byte-level vocabularies: visible bytes stand for themselves, others from
    U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = (chr(0x100 + rank) for rank in range(256))
    return {chr(byte) if byte in visible else next(hidden): byte for byte in range(256)}


_BYTES = _byte_letters()
