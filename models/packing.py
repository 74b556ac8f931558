"""Batches: texts of the corpus as rows of tokens. A row holds several texts, which do not see each other.

A batch is a function of (seed, step, rank), so training resumes anywhere. Tokens of answers have full weight, those of
questions a small one: they help, but cannot be predicted. Every sixteenth step has long rows of long conversations."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from models.corpus import FIRST, LATER, talks, texts
from models.talk import Kind, Split
from models.template import END, PAD, Template
from models.tokenizer import token_id
from models.tools import conversation

ROW = 384
LONG_ROW = 2048
LONG_EVERY = 16  # one step in so many has long rows
ASKED_WEIGHT = 0.25
_MISSES = 4  # after so many texts in sequence that fit nowhere the batch is full


@dataclass(frozen=True, slots=True)
class TextBatch:
    tokens: Tensor  # [rows, length]
    targets: Tensor  # [rows, length]: the next token of the same text
    weights: Tensor  # [rows, length]: weight of each target; 0 where there is none
    mask: Tensor  # [rows, 1, length, length]: which tokens a token sees


class Packer:
    def __init__(self, tokenizer: Tokenizer, seed: int, batch_tokens: int, *, first_steps: int = 0) -> None:
        self._tokenizer, self._seed, self._batch_tokens = tokenizer, seed, batch_tokens
        self._first_steps = first_steps
        self._answer, self._end, self._pad = (token_id(tokenizer, text) for text in ("<|assistant|>", END, PAD))

    def batch(self, step: int, rank: int = 0) -> TextBatch:
        seed = Random(f"{self._seed}/{step}/{rank}").getrandbits(64)
        long = step % LONG_EVERY == LONG_EVERY - 1
        length = min(LONG_ROW if long else ROW, self._batch_tokens)
        count = max(1, round(self._batch_tokens / length))
        mix = FIRST if step < self._first_steps else LATER
        rows = self._rows(long_texts(seed) if long else texts(seed, mix), count, length + 1)
        return self._batch(rows, length)

    def weights(self, ids: list[int]) -> list[float]:
        """The weight of each token as a target."""
        if self._answer not in ids:
            return [1.0] * len(ids)
        weights, answering = [], False
        for token in ids:
            weights.append(1.0 if answering else ASKED_WEIGHT)
            answering = token == self._answer or (answering and token != self._end)
        return weights

    def _rows(self, stream: Iterator[str], count: int, length: int) -> list[list[list[int]]]:
        """Fills rows with texts; each text goes to the first row in which it fits."""
        rows: list[list[list[int]]] = [[] for _ in range(count)]
        free, misses = [length] * count, 0
        while misses < _MISSES:
            ids = self._tokenizer.encode(next(stream), add_special_tokens=False).ids[:length]
            place = next((index for index, room in enumerate(free) if room >= len(ids)), None)
            if place is None:
                misses += 1
            else:
                rows[place].append(ids)
                free[place] -= len(ids)
        return rows

    def _batch(self, rows: list[list[list[int]]], length: int) -> TextBatch:
        tokens = torch.full((len(rows), length + 1), self._pad)
        weights = torch.zeros(len(rows), length + 1)
        text = torch.full((len(rows), length + 1), -1)
        for row, parts in enumerate(rows):
            place = 0
            for number, ids in enumerate(parts):
                end = place + len(ids)
                tokens[row, place:end] = torch.tensor(ids)
                weights[row, place:end] = torch.tensor(self.weights(ids))
                weights[row, place] = 0.0  # the first token follows nothing
                text[row, place:end] = number
                place = end
        text, same = text[:, :-1], text[:, :-1, None] == text[:, None, :-1]
        mask = (same & torch.ones(length, length, dtype=torch.bool).tril())[:, None]
        return TextBatch(tokens[:, :-1], tokens[:, 1:].contiguous(), weights[:, 1:].contiguous(), mask)


def long_texts(seed: int) -> Iterator[str]:
    """Conversations of many turns, some with tools."""
    rng = Random(seed)
    template = Template()
    streams = [
        talks(rng.getrandbits(64), Split.TRAINED, kind)
        for kind in (Kind.EXPLAIN, Kind.ARITHMETIC, Kind.LISTS, Kind.STORIES, Kind.JSON, Kind.CHAT)
    ]
    while True:
        if rng.random() < 0.35:
            talk = conversation(rng, rng.randint(5, 20))
            yield template.render(talk.messages(), talk.tools)
            continue
        messages = next(streams[-1]).messages()
        for _ in range(rng.randint(4, 30)):
            later = next(rng.choice(streams)).messages()
            messages += [message for message in later if message["role"] != "system"]
        yield template.render(messages, ())
