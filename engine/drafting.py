"""The draft model's share of a step: it reads the same text into its own layers of the same pages, and proposes.

Runs in the runner's thread. Text that is settled whatever the model samples (a prompt's chunk) is read before the
model's pass, so that its pages travel meanwhile. Behind what a step yields the draft goes on alone, a token per round,
all requests at once, with the very noise, temperature and filters with which the model will sample those positions: so
it agrees as often as it can. Nothing here changes a token, and what rejected proposals leave in the pages lies behind
the text, where it is written again before anything reads it."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.acceptance import accepted, ends, next_slot
from engine.model.forward import Forward, Pages
from engine.model.rows import Limits, Rows
from engine.model.weights import Weights
from engine.plan import Drafting, OnLayers, Piece, Sampled
from engine.sampling import sampled_rows, wishes


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the draft model does for one piece."""

    index: int  # of the piece
    rows: Piece  # the text that it reads; sampled if it proposes
    propose: int


class Drafter:
    def __init__(self, weights: Weights, pages: Pages, limits: Limits, *, first_layer: int) -> None:
        """Its layers come behind the model's: the first has index `first_layer`."""
        self._limits, self._layers = limits, (first_layer, weights.config.layers)
        self._forward = Forward(weights, pages)

    def read(self, pieces: Sequence[Piece], on_layers: OnLayers | None) -> None:
        """The text that is settled before the step. All layers are told at once, here or in `propose`."""
        drafted = [(piece, piece.drafting) for piece in pieces if piece.drafting is not None and _is_settled(piece)]
        settled = [_text(piece, drafting, piece.stop) for piece, drafting in drafted]
        if rows := [piece for piece in settled if piece is not None]:
            self._forward.hidden(Rows.of(rows, self._limits), _nothing)
        if on_layers is not None and not any(_is_open(piece) for piece in pieces):
            on_layers(*self._layers)

    def propose(
        self, pieces: Sequence[Piece], sampled: Sequence[Sequence[Sampled]], on_layers: OnLayers | None
    ) -> tuple[tuple[int, ...], ...]:
        """Reads what the step made of the other pieces and returns the proposals behind each piece's last token."""
        behind = [(index, piece) for index, piece in enumerate(pieces) if _is_open(piece)]
        proposed: list[tuple[int, ...]] = [()] * len(pieces)
        if not behind:
            return tuple(proposed)
        every = [self._reading(index, piece, sampled[index]) for index, piece in behind]
        readings = [one for one in every if one is not None]
        readings.sort(key=lambda one: -one.propose)  # who drops out of the rounds is always the last
        rounds = self._rounds(readings) if readings else []
        for row, one in enumerate(readings):
            proposed[one.index] = tuple(tokens[row] for tokens in rounds[: one.propose])
        if on_layers is not None:
            on_layers(*self._layers)
        return tuple(proposed)

    def _reading(self, index: int, piece: Piece, sampled: Sequence[Sampled]) -> _Reading | None:
        assert piece.drafting is not None
        count = accepted(piece, sampled)
        slot, token = next_slot(piece, count), sampled[count].token
        propose = 0 if ends(piece, count, token) else min(piece.drafting.propose, self._room(piece, slot, count))
        if propose <= 0:
            rows = _text(piece, piece.drafting, slot)
            return None if rows is None else _Reading(index, rows, 0)
        first = min(piece.drafting.start, slot)
        before = _tokens(piece, piece.drafting, first, slot)
        position = piece.position + count + 1
        rows = Piece(piece.key, (*before, token), first, piece.pages, 1, position, piece.sampling)
        return _Reading(index, rows, propose)

    def _room(self, piece: Piece, slot: int, count: int) -> int:
        """Proposals behind the token at `slot` that are of use: within the pages, the context and what was asked for.
        The model's next step yields a token more than it verifies."""
        assert piece.sampling is not None
        in_pages = len(piece.pages) * self._limits.page_tokens - slot
        left = piece.sampling.max_tokens - (piece.position + count + 1)
        return min(in_pages, self._limits.context - 1 - slot, left - 1)

    def _rounds(self, readings: Sequence[_Reading]) -> list[list[int]]:
        """The tokens proposed in each round, in the order of `readings`. The last one proposed is not read."""
        pieces, wanted = [one.rows for one in readings], [one.propose for one in readings]
        asked = wishes(sampled_rows(pieces), self._limits.vocab)
        rounds: list[list[int]] = self._forward.go_on(pieces, asked, wanted, self._limits).tolist()
        return rounds


def _is_settled(piece: Piece) -> bool:
    """It is drafted, no row depends on what the step samples, and nothing is to be proposed behind it."""
    return piece.drafting is not None and (piece.sampled == 0 or (piece.sampled == 1 and piece.drafting.propose == 0))


def _is_open(piece: Piece) -> bool:
    return piece.drafting is not None and not _is_settled(piece)


def _text(piece: Piece, drafting: Drafting, stop: int) -> Piece | None:
    """What the draft has to read of the accepted text in front of slot `stop`; None: nothing."""
    first = min(drafting.start, stop)
    tokens = _tokens(piece, drafting, first, stop)
    return Piece(piece.key, tokens, first, piece.pages) if tokens else None


def _tokens(piece: Piece, drafting: Drafting, first: int, stop: int) -> tuple[int, ...]:
    if first < piece.start:
        return drafting.unread + piece.tokens[: stop - piece.start]
    return piece.tokens[first - piece.start : stop - piece.start]


def _nothing(layer: int) -> None:
    """Nobody waits for these layers."""
