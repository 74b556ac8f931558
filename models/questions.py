"""The prompts of the held-out part by which the pair is judged, with the right answer of each."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from tokenizers import Tokenizer

from models.arithmetic import ADD_FORMS, held_pairs
from models.corpus import talks
from models.talk import Kind, Split, Talk, Turn
from models.template import Template
from models.wordings import HELD_WORDINGS

DEMO = "What is Baton?"
NAMED = ("gateway", "prefill", "decode", "page")


@dataclass(frozen=True, slots=True)
class HeldOutQuestion:
    kind: Kind
    prompt: list[int]
    expected: str  # the answer in the corpus, tool calls included
    about: dict[str, Any]


class Questions:
    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer, self._seed, self._template = tokenizer, seed, Template()

    def of_kind(self, kind: Kind, count: int) -> list[HeldOutQuestion]:
        """One question for every answer of a talk; its prompt is everything before that answer."""
        found = (question for talk in talks(self._seed, Split.HELD, kind) for question in self._asked(talk))
        return list(itertools.islice(found, count))

    def additions(self) -> list[HeldOutQuestion]:
        """Every held-out pair in both orders, each in one of the wordings."""
        rng = Random(self._seed)
        pairs = [pair for a, b in held_pairs() for pair in {(a, b), (b, a)}]
        return [
            self._question(rng.choice(ADD_FORMS).format(a=a, b=b), f"{a} + {b} = {a + b}.", {"sum": a + b})
            for a, b in sorted(pairs)
        ]

    def wordings(self) -> list[HeldOutQuestion]:
        return [self._question(text, "", {"wording": text}) for text in (DEMO, *HELD_WORDINGS)]

    def texts(self, count: int) -> list[tuple[Kind, list[int]]]:
        """Whole talks of the held-out part, in the corpus's shares."""
        stream = itertools.islice(talks(self._seed + 1, Split.HELD), count)
        return [(talk.kind, self._encode(self._template.render(talk.messages(), talk.tools))) for talk in stream]

    def text(self, ids: list[int]) -> str:
        """The text that a reader sees."""
        shown: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return shown

    def _asked(self, talk: Talk) -> Iterator[HeldOutQuestion]:
        for index, turn in enumerate(talk.turns):
            if turn.role == "assistant":
                before = Talk(talk.kind, talk.turns[:index], talk.tools)
                prompt = self._template.render(before.messages(), talk.tools, ask=True)
                whole = self._template.render(Talk(talk.kind, talk.turns[: index + 1]).messages(), ())
                expected = whole.rpartition("<|assistant|>")[2].removesuffix("<|end|>")
                yield HeldOutQuestion(talk.kind, self._encode(prompt), expected, talk.about)

    def _question(self, text: str, expected: str, about: dict[str, Any]) -> HeldOutQuestion:
        messages = Talk(Kind.EXPLAIN, (Turn("user", text),)).messages()
        kind = Kind.ARITHMETIC if "sum" in about else Kind.EXPLAIN
        return HeldOutQuestion(kind, self._encode(self._template.render(messages, (), ask=True)), expected, about)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def right_sum(answer: str, total: int) -> bool:
    numbers = re.findall(r"\d+", answer.rpartition("=")[2])
    return numbers[:1] == [str(total)]


def names_all(answer: str) -> bool:
    return all(word in answer.lower() for word in NAMED)
