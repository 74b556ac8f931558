"""Stop strings in streamed text, wherever token borders fall.

A token leaves only when none of its text can still be part of a stop string, and then with all of its text: whoever has
the tokens has exactly their text, which is what continuing an answer elsewhere relies on."""

from dataclasses import dataclass

from mesh.messages import Token


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens that leave together, and their text."""

    tokens: tuple[Token, ...]
    text: str


class StopStrings:
    def __init__(self, strings: tuple[str, ...], *, include: bool = False) -> None:
        self._strings = strings
        self._include = include  # leave the matched string in the text
        self._tokens: list[Token] = []  # held back
        self._ends: list[int] = []  # where each one's text ends in the held text
        self._text = ""
        self.matched: str | None = None

    def push(self, token: Token, text: str, *, active: bool = True) -> Piece:
        """What may leave now; `matched` tells whether the answer ends here. Inactive: this text can't be a match."""
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

    def flush(self) -> Piece:
        """All that is held."""
        piece = Piece(tuple(self._tokens), self._text)
        self._tokens, self._ends, self._text = [], [], ""
        return piece

    def _release(self, until: int) -> Piece:
        count = sum(end <= until for end in self._ends)  # ascending
        if count == 0:
            return Piece((), "")
        cut = self._ends[count - 1]
        piece = Piece(tuple(self._tokens[:count]), self._text[:cut])
        self._tokens, self._text = self._tokens[count:], self._text[cut:]
        self._ends = [end - cut for end in self._ends[count:]]
        return piece

    def _open_tail(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = 0
        for string in self._strings:
            for length in range(min(len(string) - 1, len(self._text)), longest, -1):
                if self._text.endswith(string[:length]):
                    longest = length
                    break
        return longest
