"""Where the text of each token begins in its choice: the offsets of logprobs."""

from gateway.text.tokenizer import ModelTokenizer
from mesh.messages.jobs import Token


class TokenPlaces:
    """The places of one choice; tokens of one character share its place."""

    def __init__(self, tokenizer: ModelTokenizer | None) -> None:
        """Without a tokenizer no places are noted."""
        self._tokenizer = tokenizer
        self._characters = 0
        self._starts: dict[int, int] = {}  # by position

    def add(self, token: Token, text: str) -> None:
        if self._tokenizer is not None:
            own = self._tokenizer.token_text(token.token)
            before = len(text) - len(own) if text.endswith(own) else 0  # text of tokens before it that waited
            self._starts[token.position] = self._characters + before
            self._characters += len(text)

    def of(self, tokens: tuple[Token, ...]) -> tuple[int, ...]:
        return tuple(self._starts.pop(token.position) for token in tokens) if self._tokenizer is not None else ()
