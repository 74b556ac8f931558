"""Text to token ids and back: the tokenizer of the model's folder, with the operations that a front door needs.

Steps 1 and 8 of a request's life. gateway/text/detokenizer.py yields the text of an answer while it streams."""

import os
from collections.abc import Iterable, Sequence
from functools import cached_property

from tokenizers import Tokenizer

from gateway.text.byte_runs import joined
from gateway.text.pieces import LETTERS, REPLACEMENT, PlainTexts, pieces_of

SHRINKS = 4  # factor by which normalizing may shorten a text
MOST_PLAIN = 16  # sets of hidden tokens whose PlainTexts are kept: none, all special ones, those without some marks


# A batch here has one text, so threads of the library would only disturb; and it complains about them at every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def encode(tokenizer: Tokenizer, text: str, *, special: bool) -> list[int]:
    """Ids of a text. A batch lets the process's other threads run meanwhile; a single text would stop them."""
    (encoded,) = tokenizer.encode_batch_fast([text], add_special_tokens=special)
    ids: list[int] = encoded.ids
    return ids


class ModelTokenizer:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._longest = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self.pieces = pieces_of(tokenizer)
        self.special = frozenset(
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self._texts: dict[int, str] = {}
        self._plain: dict[frozenset[int], PlainTexts] = {}  # by what is hidden
        self._anchor = self._find_anchor()

    def plain_texts(self, hidden: frozenset[int]) -> PlainTexts:
        """The texts of tokens that are whole characters, without hidden ones."""
        found = self._plain.get(hidden)
        if found is None:
            found = PlainTexts(self.pieces, hidden)
            if len(self._plain) < MOST_PLAIN:
                self._plain[hidden] = found
        return found

    @cached_property
    def added(self) -> dict[str, int]:
        """Ids of the tokens that are added to the vocabulary, by their text."""
        return {token.content: id for id, token in self._tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the model expects before and behind a plain text."""
        plain, whole = self.encode("a", special=False), self.encode("a", special=True)
        for start in range(len(whole) - len(plain) + 1):
            if plain and whole[start : start + len(plain)] == plain:
                return whole[:start], whole[start + len(plain) :]
        return (), ()

    def most_characters(self, tokens: int) -> int:
        """Upper bound for the characters of a text of `tokens` tokens; a longer text has more tokens."""
        return SHRINKS * self._longest * tokens

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """`special`: add the tokens that the model expects around plain text; a chat template has them already."""
        return tuple(encode(self._tokenizer, text, special=special))

    def ids_of(self, names: Iterable[str]) -> frozenset[int]:
        """Ids of those names that are tokens."""
        found = map(self._tokenizer.token_to_id, names)
        return frozenset(number for number in found if number is not None)

    def decode(
        self,
        ids: Sequence[int],
        *,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
        keep_space: bool = False,
    ) -> str:
        """`shown`: special tokens that have text even where special tokens are skipped. `keep_space`: also the space
        that a text loses at its beginning, where tokens have text of their own."""
        if skip_special:
            hidden = self.special - shown
            ids = [number for number in ids if number not in hidden]
        if self.pieces is None:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
            return text
        if self.pieces.has_runs:
            whole = joined(self.pieces, ids)
            return whole if keep_space else self.pieces.begin(whole)
        first = b"".join(map(self.pieces.of if keep_space else self.pieces.first, ids[:1]))
        return (first + b"".join(map(self.pieces.of, ids[1:]))).decode("utf-8", "replace")

    def numbers(self) -> dict[str, int]:
        """Ids of all tokens by their names, as the vocabulary spells them."""
        found: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return found

    def name_of(self, token: int) -> str:
        """The token as the vocabulary spells it; empty for an id that has no token."""
        name: str | None = self._tokenizer.id_to_token(token)
        return name or ""

    def token_text(self, token: int) -> str:
        """Text of one token inside a text, special tokens too; half a character shows as a replacement character."""
        text = self._texts.get(token)
        if text is None:
            text = self._texts[token] = self._text_of(token)
        return text

    def token_bytes(self, token: int) -> bytes:
        """Bytes that a token stands for, also where they are no whole character."""
        if self.pieces is not None:
            return self.pieces.of(token)
        piece: str | None = self._tokenizer.id_to_token(token)
        text = self.token_text(token)
        if piece is None or REPLACEMENT not in text:
            return text.encode()
        if piece.startswith("<0x") and piece.endswith(">"):
            return bytes([int(piece[3:-1], 16)])
        if all(letter in LETTERS for letter in piece):
            return bytes(LETTERS[letter] for letter in piece)
        return text.encode()

    def _text_of(self, token: int) -> str:
        if self.pieces is not None:
            return self.pieces.of(token).decode("utf-8", "replace")
        if self._anchor is not None:
            anchor, before = self._anchor
            text = self.decode((anchor, token), skip_special=False)
            if text.startswith(before):
                return text[len(before) :]
        return self.decode((token,), skip_special=False)

    def _find_anchor(self) -> tuple[int, str] | None:
        """A token, with its text, behind which others have the text that they have inside a text."""
        if self.pieces is not None:
            return None
        for letter in "aeiost":
            number = self._tokenizer.token_to_id(letter)
            if number is not None and (text := self.decode((number,), skip_special=False)):
                return number, text
        return None
