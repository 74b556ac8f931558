"""The rules by which a request's logits change, each a small object that follows the text token by token.

`rules_of` names them in the order in which they apply. A rule that belongs to other parameters of a request is added
there: it gets every token of the text by `push`, drafts included, and drafts that were only tried are taken back by
`pop`, the last one first. Arithmetic is elementwise in float32, so its bits are the same on every machine."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.step.reasoning_limit import ReasoningLimit
from mesh.messages.jobs import Adjustments, Sampling, TokenBias, TokenSequence

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


class LogitRule(Protocol):
    def push(self, token: int, *, emitted: bool) -> None:
        """The text goes on with this token; `emitted`: it is not part of the prompt."""

    def pop(self) -> None:
        """Takes back the last emitted token."""

    def apply(self, row: Floats) -> None:
        """Changes the logits of the token that follows the text, in place."""


def rules_of(sampling: Sampling) -> list[LogitRule]:
    """The rules of a request. Bans come last, then what ends reasoning, and the repetition bans at the very end: they
    give way where they would leave no token at all."""
    wanted = sampling.adjustments or Adjustments()
    rules = list[LogitRule]()
    if wanted.biases:
        rules.append(Biases(wanted.biases))
    if wanted.repetition_penalty != 1.0:
        rules.append(RepetitionPenalty(wanted.repetition_penalty))
    if wanted.frequency_penalty or wanted.presence_penalty:
        rules.append(EmittedPenalties(wanted.frequency_penalty, wanted.presence_penalty))
    if wanted.allowed or wanted.suppressed_ids:
        rules.append(Bans(wanted))
    if wanted.reasoning is not None:
        rules.append(ReasoningLimit(wanted.reasoning))
    if wanted.bad_words or wanted.no_repeat_ngram:
        rules.append(RepetitionBans(wanted.bad_words, wanted.no_repeat_ngram))
    return rules


class Biases:
    def __init__(self, biases: Sequence[TokenBias]) -> None:
        self._ids = np.array([each.token for each in biases], np.int64)
        self._biases = np.array([each.bias for each in biases], np.float32)

    def push(self, token: int, *, emitted: bool) -> None:
        """The text does not matter."""

    def pop(self) -> None:
        """The text does not matter."""

    def apply(self, row: Floats) -> None:
        row[self._ids] += self._biases


class RepetitionPenalty:
    """Every token of the text counts once, those of the prompt too, as in transformers."""

    def __init__(self, penalty: float) -> None:
        self._penalty, self._text = np.float32(penalty), TokenCounts()

    def push(self, token: int, *, emitted: bool) -> None:
        self._text.push(token)

    def pop(self) -> None:
        self._text.pop()

    def apply(self, row: Floats) -> None:
        ids = self._text.ids
        logits = row[ids]
        row[ids] = np.where(logits > 0, logits / self._penalty, logits * self._penalty)


class EmittedPenalties:
    """The frequency and presence penalties of the OpenAI API: only emitted tokens count."""

    def __init__(self, frequency: float, presence: float) -> None:
        self._frequency, self._presence = np.float32(frequency), np.float32(presence)
        self._emitted = TokenCounts()

    def push(self, token: int, *, emitted: bool) -> None:
        if emitted:
            self._emitted.push(token)

    def pop(self) -> None:
        self._emitted.pop()

    def apply(self, row: Floats) -> None:
        row[self._emitted.ids] -= self._frequency * self._emitted.counts + self._presence


class Bans:
    """Tokens that can never be drawn."""

    def __init__(self, adjustments: Adjustments) -> None:
        bits = np.unpackbits(np.frombuffer(adjustments.allowed, np.uint8), bitorder="little")
        self._closed = bits == 0
        self._suppressed = np.array(adjustments.suppressed_ids, np.int64)

    def push(self, token: int, *, emitted: bool) -> None:
        """The text does not matter."""

    def pop(self) -> None:
        """The text does not matter."""

    def apply(self, row: Floats) -> None:
        if self._closed.size:
            count = min(len(row), len(self._closed))
            np.copyto(row[:count], -np.inf, where=self._closed[:count])
            row[count:] = -np.inf
        row[self._suppressed] = -np.inf


class RepetitionBans:
    """Bans the token that would complete a bad word, or an n-gram for the second time. Bad words are looked for in the
    emitted tokens, as vLLM does; n-grams in the whole text, as transformers does."""

    def __init__(self, words: Sequence[TokenSequence], ngram: int) -> None:
        self._always = np.array([word.tokens[0] for word in words if len(word.tokens) == 1], np.int64)
        self._words: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)  # by their last token but one
        for word in words:
            if len(word.tokens) > 1:
                self._words[word.tokens[-2]].append(word.tokens)
        self._ngram, self._text, self._prompt = ngram, list[int](), 0
        self._seen: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)  # tokens that followed n - 1 tokens

    def push(self, token: int, *, emitted: bool) -> None:
        if self._ngram and (before := self._before()) is not None:
            self._seen[before].append(token)
        self._text.append(token)
        self._prompt += not emitted

    def pop(self) -> None:
        self._text.pop()
        if self._ngram and (before := self._before()) is not None:
            self._seen[before].pop()

    def apply(self, row: Floats) -> None:
        banned = list[int]()
        if self._ngram and (before := self._before()) is not None:
            banned.extend(self._seen.get(before, ()))
        if len(self._text) > self._prompt:
            for word in self._words.get(self._text[-1], ()):
                length = len(word) - 1
                if len(self._text) - self._prompt >= length and tuple(self._text[-length:]) == word[:-1]:
                    banned.append(word[-1])
        ids = np.unique(np.concatenate([self._always, np.array(banned, np.int64)]))
        if not ids.size:
            return
        before_ban = row[ids]
        row[ids] = -np.inf
        if row.max() == -np.inf:
            row[ids] = before_ban

    def _before(self) -> tuple[int, ...] | None:
        """The last n - 1 tokens; None: the text has fewer."""
        count = self._ngram - 1
        return None if len(self._text) < count else tuple(self._text[len(self._text) - count :])


class TokenCounts:
    """How often each token came, as arrays that grow with the number of different tokens."""

    def __init__(self) -> None:
        self._text: list[int] = []
        self._places: dict[int, int] = {}  # by token, in the order in which the tokens first came
        self._ids, self._counts = np.empty(64, np.int64), np.empty(64, np.float32)

    def push(self, token: int) -> None:
        self._text.append(token)
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += 1

    def pop(self) -> None:
        token = self._text.pop()
        place = self._places[token]
        self._counts[place] -= 1
        if self._counts[place] == 0:
            del self._places[token]  # it came last, so it has the last place

    @property
    def ids(self) -> Ids:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._places)]
