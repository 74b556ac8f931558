"""One choice of SGLang's dialect as it grows: everything so far, encoded once, so that each event only joins bytes.

Each event repeats all of them, so their number must not grow with the answer: an event comes when the answer has grown
by a part of its tokens. The more bytes its tokens have, as with long lists of logprobs, the larger that part is."""

from collections.abc import Iterable

from gateway.answers.events import Delta
from gateway.dialects.common.pieces import encode_pieces
from gateway.dialects.common.sse import encode
from gateway.dialects.described.native import SglangMeta
from gateway.text.tokenizer import ModelTokenizer
from mesh.messages.jobs import Token

FRAMES = 256  # events in which a token is repeated, on average and at most
FEWEST_FRAMES = 8  # the same for tokens with the longest lists
FRAMED_BYTES = 16_384  # bytes of one token in all events, where FEWEST_FRAMES allows that


class Triples:
    """Logprobs as SGLang spells them: [logprob, token id, text or null]."""

    def __init__(self, tokenizer: ModelTokenizer, top: int, *, texts: bool) -> None:
        self._tokenizer = tokenizer
        self._texts = texts
        self.top = top

    def of(self, token: int, logprob: float | None) -> bytes:
        text = self._tokenizer.token_text(token) if self._texts else None
        return encode([logprob, token, text])

    def listed(self, tops: Iterable[tuple[int, float]]) -> bytes:
        """The likeliest tokens at one position."""
        found = [self.of(token, logprob) for token, logprob in tops][: self.top]
        return b"[%b]" % b",".join(found)

    def tops_of(self, token: Token) -> bytes:
        return self.listed(zip(token.top_ids, token.top_logprobs, strict=True))


class GrowingChoice:
    def __init__(self, triples: Triples | None) -> None:
        """`triples`: how logprobs are spelled; None: there are none."""
        self._triples = triples
        self.tokens = self.characters = 0
        self._shown = 0  # tokens of the last event
        self.last: int | None = None  # the last token
        self.cached_tokens: int | None = None  # cached tokens of its prompt, once they are known
        self._text, self._ids, self._logprobs, self._tops = bytearray(), bytearray(), bytearray(), bytearray()

    def add(self, delta: Delta) -> None:
        text = encode(delta.text)
        self._text += text[1:-1]
        self.characters += len(delta.text)
        for token in delta.tokens:
            comma = b"," if self.tokens else b""
            self._ids += comma + b"%d" % token.token
            if self._triples is not None:
                self._logprobs += comma + self._triples.of(token.token, token.logprob)
                if self._triples.top:
                    self._tops += comma + self._triples.tops_of(token)
            self.tokens, self.last = self.tokens + 1, token.token

    def is_due(self) -> bool:
        """Whether the choice has grown enough for an event; if so, the event counts as sent."""
        size = len(self._text) + len(self._ids) + len(self._logprobs) + len(self._tops)
        frames = max(FEWEST_FRAMES, min(FRAMES, FRAMED_BYTES * self.tokens // max(1, size)))
        due = self.tokens - self._shown >= 1 + self.tokens // frames
        self._shown = self.tokens if due else self._shown
        return due

    def members(self, meta: SglangMeta) -> list[bytes]:
        """The members of the choice's object, in pieces."""
        parts = [b'"text":"', bytes(self._text), b'","output_ids":[', bytes(self._ids), b'],"meta_info":']
        first, *rest = encode_pieces(meta)
        pieces = [*parts, first, *rest]
        if self._triples is not None:
            pieces[-1] = pieces[-1][:-1]
            pieces += [b',"output_token_logprobs":[', bytes(self._logprobs), b"]"]
            if self._triples.top:
                pieces += [b',"output_top_logprobs":[', bytes(self._tops), b"]"]
            pieces.append(b"}")
        return pieces
