"""The prompts that every way is asked, and answers in one shape, so that those of two ways can be compared."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from baton import CompletionOutput, SamplingParams

WORDS = "capital France river number word city the of is a small big green why seven time once".split()
LENGTHS = (1, 4, 12, 30, 100)  # most words of a prompt

CONTROLS = 50  # prompts that are asked again with another seed


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    text: str
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class ComparedAnswer:
    """The tokens of an answer, and for each of them the logprobs of the likeliest ones and of itself."""

    token_ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...]

    @classmethod
    def of_library(cls, output: CompletionOutput) -> "ComparedAnswer":
        listed = [{token: each.logprob for token, each in entry.items()} for entry in output.logprobs or []]
        return cls(tuple(output.token_ids), tuple(listed))

    @classmethod
    def of_http(cls, choice: Mapping[str, Any]) -> "ComparedAnswer":
        """A choice of a completion whose tokens are named by their ids."""
        ids, found = tuple(choice["token_ids"]), choice["logprobs"]
        tops = [{_id_of(name): logprob for name, logprob in (top or {}).items()} for top in found["top_logprobs"]]
        chosen = zip(ids, found["token_logprobs"], strict=True)
        return cls(ids, tuple(top | {token: logprob} for top, (token, logprob) in zip(tops, chosen, strict=True)))


def asked(count: int, seed: int) -> list[AskedPrompt]:
    """Short and long prompts, half of them greedy and half sampled."""
    drawn = random.Random(seed)
    return [_asked(drawn, number) for number in range(count)]


def _asked(drawn: random.Random, number: int) -> AskedPrompt:
    words = drawn.randint(1, drawn.choice(LENGTHS))
    sampled = {
        "temperature": drawn.choice((0.7, 1.0)),
        "top_p": drawn.choice((0.9, 1.0)),
        "top_k": drawn.choice((0, 40)),
    }
    params = SamplingParams(
        **(sampled if number % 2 else {"temperature": 0.0}),
        seed=drawn.getrandbits(32),
        max_tokens=drawn.randint(4, 24),
        logprobs=drawn.randint(0, 5),
    )
    return AskedPrompt(" ".join(drawn.choices(WORDS, k=words)), params)


def with_other_seeds(prompts: Sequence[AskedPrompt]) -> list[AskedPrompt]:
    """The first sampled prompts, each with another seed."""
    sampled = [each for each in prompts if each.params.temperature > 0][:CONTROLS]
    return [replace(each, params=replace(each.params, seed=(each.params.seed or 0) + 1)) for each in sampled]


def body_of(prompt: AskedPrompt) -> dict[str, Any]:
    """The prompt as a completion over HTTP."""
    return {"prompt": prompt.text, **prompt.params.body(), "return_token_ids": True, "return_tokens_as_token_ids": True}


def differences(first: Sequence[ComparedAnswer], second: Sequence[ComparedAnswer]) -> list[str]:
    """One line for each prompt whose answers differ."""
    found = list[str]()
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        if one.token_ids != other.token_ids:
            found.append(f"prompt {number}: tokens {list(one.token_ids)} and {list(other.token_ids)}")
        elif one.logprobs != other.logprobs:
            found.append(f"prompt {number}: the tokens are equal and their logprobs are not")
    return found


def _id_of(name: str) -> int:
    return int(name.removeprefix("token_id:"))
