"""Stop strings in streamed text, wherever token borders fall.

Step 8 of a request's life, between detokenizer and tool calls. A token leaves only when none of its text can still be
part of a stop string, and then with all of its text. So a client that has the tokens has exactly their text, which
continuing an answer at another gateway relies on."""

from dataclasses import dataclass

from mesh.messages.jobs import Token


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Tokens that leave together, and their text."""

    tokens: tuple[Token, ...]
    text: str


class StopStrings:
    def __init__(self, strings: tuple[str, ...], *, include: bool = False) -> None:
        self._strings = strings
        self._begins = frozenset(string[:1] for string in strings)
        self._include = include  # leave the matched string in the text
        self._tokens: list[Token] = []  # tokens that are held back
        self._ends: list[int] = []  # where the text of each held token ends in the held text
        self._text = ""  # text of the held tokens
        self.matched: str | None = None

    def push(self, token: Token, text: str, *, active: bool = True) -> TextPiece:
        """Take a token with its text, return what may leave now. `matched` is set when a stop string ends the answer
        here; without `active` this text cannot match."""
        if not self._strings:
            return TextPiece((token,), text)
        self._tokens.append(token)
        self._text += text
        self._ends.append(len(self._text))
        if not active:
            return self.flush()
        end, string = min(((self._text.find(s) + len(s), s) for s in self._strings if s in self._text), default=(0, ""))
        if string:
            self.matched = string
            self._text = self._text[: end if self._include else end - len(string)]
            return self.flush()
        return self._release(len(self._text) - self._open_tail())

    @property
    def none(self) -> bool:
        """Whether there is no stop string."""
        return not self._strings

    def passes(self, text: str) -> bool:
        """Whether a token with this text leaves at once: nothing is held back, and no stop string begins in it."""
        return not self._tokens and (not self._begins or self._begins.isdisjoint(text))

    def flush(self) -> TextPiece:
        """Return everything that is held."""
        piece = TextPiece(tuple(self._tokens), self._text)
        self._tokens = []
        self._ends = []
        self._text = ""
        return piece

    def _release(self, until: int) -> TextPiece:
        count = sum(end <= until for end in self._ends)  # ends ascend
        if count == 0:
            return TextPiece((), "")
        cut = self._ends[count - 1]
        piece = TextPiece(tuple(self._tokens[:count]), self._text[:cut])
        self._tokens, self._text = self._tokens[count:], self._text[cut:]
        self._ends = [end - cut for end in self._ends[count:]]
        return piece

    def _open_tail(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for string in self._strings:
            for length in range(min(len(string) - 1, len(self._text)), longest, -1):
                if self._text.endswith(string[:length]):
                    longest = length
                    break
        return longest
