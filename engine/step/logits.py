"""Changes the logits of a request before a token is drawn from them: penalties, biases, bans.

Steps 5 and 7 of a request's life, between the model's pass and the draw in `engine/step/sampling.py`. Each request has
rules (`engine/step/logit_rules.py`). They follow its text token by token, so a step costs what it adds to the text, not
the whole text. What a rule does depends on the text and the request's parameters alone: a token is the same in any
batch, on either tier, after any fail-over, and with or without drafts. A batch without such requests passes through
untouched."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.step.logit_rules import Bans, Floats, LogitRule, rules_of
from engine.step.plan import Piece

Ints = NDArray[np.int32]
Banned = tuple[Ints, Ints]  # ids of all rows, one row behind the other, and where those of each row begin [rows + 1]


class FollowedText:
    """The rules of one request, and how much of its text they have followed."""

    def __init__(self, piece: Piece) -> None:
        assert piece.sampling is not None
        self.source, self.length = piece.text, 0
        self._rules: list[LogitRule] = rules_of(piece.sampling)
        self._excludes = any(isinstance(rule, Bans) for rule in self._rules)

    def adjust(self, piece: Piece, rows: Floats, raw: Floats, banned: Sequence[Ints]) -> None:
        """Changes `rows`, copies of the piece's `raw` rows, in place. Row i stands behind the accepted text and i
        drafts. `banned` are ids that a row must not take, whatever the rules say; where these allow no other, they give
        way."""
        assert piece.text is not None
        first = piece.stop - piece.sampled + 1  # length of the text in front of the first token that is drawn
        prompt = first - piece.position
        for index, token in enumerate(piece.text[self.length : first], self.length):
            self._push(token, emitted=index >= prompt)
        self.length = first
        drafts = piece.tokens[len(piece.tokens) - piece.sampled + 1 :]
        for row, own, ids, draft in zip(rows, raw, banned, (None, *drafts), strict=True):
            if draft is not None:
                self._push(draft, emitted=True)
            row[ids] = -np.inf
            for rule in self._rules:
                rule.apply(row)
            if self._excludes and row.max() == -np.inf:
                row[:] = own
                row[ids] = -np.inf
        for _ in drafts:
            for rule in self._rules:
                rule.pop()

    def _push(self, token: int, *, emitted: bool) -> None:
        for rule in self._rules:
            rule.push(token, emitted=emitted)


class LogitAdjuster:
    """Belongs to the runner's thread. It keeps what the rules of the last step's requests know, by the request's key;
    a request that comes back later is followed from the start of its text again."""

    def __init__(self) -> None:
        self._followed: dict[int, FollowedText] = {}
        self._scratch: Floats = np.empty((0, 0), np.float32)  # memory of the copies, valid until the next step

    def adjust(
        self, pieces: Sequence[Piece], logits: Floats, banned: Banned | None = None
    ) -> tuple[Floats, Ints] | None:
        """Adjusted copies of the rows that have rules, and for each sampled row the index of its copy, or -1. None: no
        row has rules. `logits` is [sampled rows, vocab]; `banned` are ids that no rule brings back."""
        adjusting = [adjusts(piece) for piece in pieces]
        if not any(adjusting):
            self._followed.clear()
            return None
        counts = np.array([piece.sampled for piece in pieces])
        mask = np.repeat(np.array(adjusting), counts)
        chosen, index = np.flatnonzero(mask), np.full(len(logits), -1, np.int32)
        copies = np.take(logits, chosen, axis=0, out=self._room(len(chosen), logits.shape[1]), mode="clip")
        bans = _by_row(banned, len(logits))
        index[chosen] = np.arange(len(chosen), dtype=np.int32)
        followed, stop, copied = dict[int, FollowedText](), 0, 0
        for piece, own in zip(pieces, adjusting, strict=True):
            stop += piece.sampled
            if own:
                first, copied = copied, copied + piece.sampled
                text = followed[piece.key] = self._follow(piece)
                here = slice(stop - piece.sampled, stop)
                text.adjust(piece, copies[first:copied], logits[here], bans[here])
        self._followed = followed
        return copies, index

    def _room(self, rows: int, vocab: int) -> Floats:
        if len(self._scratch) < rows or self._scratch.shape[1] != vocab:
            self._scratch = np.empty((rows, vocab), np.float32)
        return self._scratch[:rows]

    def _follow(self, piece: Piece) -> FollowedText:
        if piece.text is None:
            raise ValueError(f"piece {piece.key} has adjustments of logits, but not the text that they depend on")
        known = self._followed.get(piece.key)
        if known is not None and known.source is piece.text and known.length <= piece.stop - piece.sampled + 1:
            return known
        return FollowedText(piece)


def _by_row(banned: Banned | None, rows: int) -> list[Ints]:
    if banned is None:
        return [np.empty(0, np.int32)] * rows
    ids, starts = banned
    return np.split(ids, starts[1:-1])


def adjusts(piece: Piece) -> bool:
    return piece.sampling is not None and piece.sampling.adjustments is not None
