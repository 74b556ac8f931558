"""The text of one choice, token by token: exactly the text that new tokens add.

Step 8 of a request's life. Never a piece of the prompt, never half a character, and at the end everything that was held
back. Where tokens have bytes of their own, an incremental decoder joins them, or `gateway/text/byte_runs.py`; else a
short window of ids is decoded again, so that the cost never grows with the answer."""

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway.text.byte_runs import ByteRuns, run_at_end
from gateway.text.pieces import REPLACEMENT, Pieces
from gateway.text.tokenizer import ModelTokenizer

WINDOW = 8  # ids of the prompt that may become context of the answer
CHARACTER = 4  # ids that one character may span
HELD = 3  # replacement characters at the end that may still become one character
PENDING = 64  # ids without a complete character, after which their text leaves as it is
REPLAY = 32  # last ids of a continued answer, replayed to restore what its end held back
_Utf8 = getincrementaldecoder("utf-8")


class _Joiner(Protocol):
    def push(self, token: int) -> str:
        """The text that this token completes."""

    def flush(self) -> str:
        """The text that is held back."""

    @property
    def between(self) -> bool:
        """Nothing is held back, and the text of the next token does not depend on those before it."""


class Detokenizer:
    def __init__(
        self,
        tokenizer: ModelTokenizer,
        prompt: Sequence[int],
        emitted: Sequence[int] = (),
        *,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
        keep_space: bool = False,
    ) -> None:
        """`shown`: special tokens that have text even where special tokens are skipped. `keep_space`: the text keeps
        the space that it begins with, since its form counts that space."""
        self._hidden = tokenizer.special - shown if skip_special else frozenset[int]()
        start, pieces = max(0, len(emitted) - REPLAY), tokenizer.pieces
        if pieces is not None and pieces.has_runs:
            start = run_at_end(pieces, emitted[:start], self._hidden.__contains__)
        replayed, before = emitted[start:], emitted[:start][-2 * WINDOW :]
        context = [token for token in (*prompt[-2 * WINDOW :], *before) if token not in self._hidden]
        # A text loses its first space, so an answer behind nothing but special tokens loses it too.
        begins = not (context or keep_space) and all(token in self._hidden for token in (*prompt, *emitted[:start]))
        self._joiner: _Joiner
        if pieces is None:
            self._joiner = _Window(tokenizer, context)
        elif pieces.has_runs:
            prompts = () if start else prompt[run_at_end(pieces, prompt, self._hidden.__contains__) :]
            self._joiner = ByteRuns(pieces, [each for each in prompts if each not in self._hidden], first=begins)
        else:
            self._joiner = _Bytes(pieces, context, first=begins)
        self.plain_texts = tokenizer.plain_texts(self._hidden)
        self.between = self._joiner.between  # a token in `plain_texts` has that text now, and `push` changes nothing
        for token in replayed:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that this token completes; often, but not always, its own."""
        if token in self._hidden:
            return ""
        text = self._joiner.push(token)
        self.between = self._joiner.between
        return text

    def flush(self) -> str:
        """The text that is held back, at the end of the answer."""
        return self._joiner.flush()


class AnswerText:
    """How the tokens of one request's choices become text."""

    def __init__(self, tokenizer: ModelTokenizer, marks: Iterable[str], *, skip_special: bool, in_form: bool) -> None:
        """`marks`: special tokens that are read, such as those around calls. `in_form`: the text follows a grammar."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._keep_space = in_form
        self._shown = tokenizer.ids_of(marks)

    def detokenizer(self, prompt: Sequence[int], emitted: Sequence[int]) -> Detokenizer:
        """A detokenizer for the tokens of a choice behind those that the client has."""
        return Detokenizer(
            self._tokenizer,
            prompt,
            emitted,
            skip_special=self._skip_special,
            shown=self._shown,
            keep_space=self._keep_space,
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens that begin the answer."""
        return self._tokenizer.decode(
            ids, skip_special=self._skip_special, shown=self._shown, keep_space=self._keep_space
        )


class _Bytes:
    """Joins tokens that have bytes of their own."""

    def __init__(self, pieces: Pieces, context: Sequence[int], *, first: bool) -> None:
        self._pieces, self._first = pieces, first  # the next token begins the text
        self._decoder = _Utf8("replace")
        self._decoder.decode(b"".join(map(pieces.of, context)))
        self._prompts, _ = self._decoder.getstate()  # bytes of the prompt's last character, if it is incomplete

    def push(self, token: int) -> str:
        raw = self._pieces.first(token) if self._first else self._pieces.of(token)
        self._first = False
        if not raw:
            return ""
        if self._prompts:
            # A character that begins in the prompt belongs to the answer that completes it, and else to nobody.
            begun = self._prompts + raw[:1]
            if _Utf8("replace").decode(begun).startswith(REPLACEMENT) and begun != REPLACEMENT.encode():
                self._decoder.reset()
            self._prompts = b""
        return self._decoder.decode(raw)

    @property
    def between(self) -> bool:
        return not (self._first or self._decoder.getstate()[0])

    def flush(self) -> str:
        if self._prompts:
            self._decoder.reset()
        return self._decoder.decode(b"", final=True)


class _Window:
    """Decodes the last ids with the ids before them, for tokenizers that decide about spaces from the neighbours."""

    def __init__(self, tokenizer: ModelTokenizer, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []  # ids whose text is complete and has left
        self._base = ""  # text of the context ids
        self._pending: list[int] = []  # ids after the context
        self._sent = 0  # characters of the pending ids' text that have left
        self._prompts = ""  # text at the start of the pending ids that belongs to the prompt
        self._prime(list(context))

    def push(self, token: int) -> str:
        self._pending.append(token)
        text = self._text()
        tail = len(text) - len(text.rstrip(REPLACEMENT))
        start = self._start(text)
        if tail == 0 or len(self._pending) >= PENDING:
            self._settle(text, complete=tail == 0)
            return text[start:]
        self._sent = max(start, len(text) - min(tail, HELD))
        return text[start : self._sent]

    @property
    def between(self) -> bool:
        return False

    def flush(self) -> str:
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
                    self._context = ids[start:end]
                    self._base = text
                    self._pending = ids[end:]
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
        return self._tokenizer.decode(ids, skip_special=False) if ids else ""
