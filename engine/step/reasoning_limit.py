"""The rule that ends a model's reasoning after a number of tokens: it forces the mark behind the reasoning.

Reasoning is what gateway/text reads as reasoning: in channels every message of one kind, else only what stands at the
beginning of an answer. A mark that the model writes in its content later is content.

`rules_of` in engine/step/logit_rules.py adds it. Its state depends on the emitted tokens alone, so it is the same after
a fail-over, and drafts that were only tried are taken back. A mark is a set of tokens for each of its places, because
the outer tokens of a mark that is ordinary text may hold text around it too. A mark that the model has begun to write
itself is finished, not written anew. A token that is banned already is never forced: the limit waits until it may
come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mesh.messages.jobs import ReasoningBudget, TokenSequence

Floats = NDArray[np.float32]
Places = Sequence[frozenset[int]]  # the tokens that may stand at each place of a mark


@dataclass(frozen=True, slots=True)
class _State:
    """The place of a text in its reasoning, behind some emitted tokens."""

    inside: bool  # the text stands inside of reasoning
    blank: int = 0  # emitted tokens of white space at the beginning of the answer
    spent: int = 0  # tokens of reasoning, of all stretches
    here: int = 0  # tokens of this stretch


class ReasoningLimit:
    def __init__(self, budget: ReasoningBudget) -> None:
        self._tokens = budget.tokens
        self._begin, self._end = _places(budget.begin), _places(budget.end)
        self._forced = [place.tokens[0] for place in budget.end]
        self._barred, self._bars = budget.barred, np.array(budget.begin[budget.barred].tokens, np.int64)
        self._ends, self._spaces = frozenset(budget.ends), frozenset(budget.spaces)
        # Where another kind of message may follow the barred place, reasoning may begin anywhere, and need not at all.
        self._channels = budget.barred < len(budget.begin) - 1
        self._text = list[int]()
        self._states = [_State(inside=budget.begun)]

    def push(self, token: int, *, emitted: bool) -> None:
        self._text.append(token)
        if emitted:
            self._states.append(self._after(self._states[-1]))

    def pop(self) -> None:
        self._text.pop()
        self._states.pop()

    def apply(self, row: Floats) -> None:
        state = self._states[-1]
        if state.spent < self._tokens:
            return
        if state.inside:
            most = min(state.here, len(self._end) - 1)
            written = next((count for count in range(most, 0, -1) if self._stands(self._end[:count])), 0)
            token = self._forced[written]
            if (logit := row[token]) > -np.inf:
                row[:] = -np.inf
                row[token] = logit
        elif self._channels and self._stands(self._begin[: self._barred]):
            before = row[self._bars]
            row[self._bars] = -np.inf
            if row.max() == -np.inf:
                row[self._bars] = before

    def _after(self, state: _State) -> _State:
        """The state behind one more emitted token, the last one of the text."""
        emitted = len(self._states)
        if not state.inside:
            if state.blank == emitted - 1 and self._text[-1] in self._spaces:
                return replace(state, blank=emitted)
            begins = self._channels or emitted == state.blank + len(self._begin)
            return replace(state, inside=True, here=0) if begins and self._stands(self._begin) else state
        here = state.here + 1
        if self._text[-1] in self._ends or (here >= len(self._end) and self._stands(self._end)):
            return replace(state, inside=False)
        return replace(state, here=here, spent=state.spent + 1)

    def _stands(self, places: Places) -> bool:
        """Whether the text ends with these places of a mark."""
        if len(self._text) < len(places):
            return False
        tail = self._text[len(self._text) - len(places) :]
        return all(token in place for token, place in zip(tail, places, strict=True))


def _places(mark: Sequence[TokenSequence]) -> Places:
    return [frozenset(place.tokens) for place in mark]
