"""Wrong arguments of `LLM` and `SamplingParams` are named, each with what it must be."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from baton import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)

WRONG: list[tuple[str, Callable[[LLM], object], str]] = [
    ("prompts", lambda llm: llm.generate(None), "prompts must be a list of prompts"),
    ("a number", lambda llm: llm.generate(5), "prompts must be a list"),
    ("a mixed list", lambda llm: llm.generate(["a", 1]), r"prompts\[1\] must be a list of token ids"),
    ("pairs", lambda llm: llm.generate([["a", "b"]]), r"prompts\[0\], a list of token ids, must be a whole number"),
    ("bytes", lambda llm: llm.generate(b"Hello"), "prompts must be a list"),
    ("listed bytes", lambda llm: llm.embed([b"a"]), r"prompts\[0\] must be a list of token ids"),
    ("a set", lambda llm: llm.generate({"a", "b"}), "prompts must be a list"),
    ("ids that are text", lambda llm: llm.generate({"prompt_token_ids": "abc"}), "prompt_token_ids must be a list"),
    ("an empty text", lambda llm: llm.generate(["a", ""]), r"prompts\[1\] is empty"),
    ("half a pair", lambda llm: llm.generate(["a", "b\ud800"]), r"prompts\[1\] holds half of a surrogate pair"),
    ("chat", lambda llm: llm.chat(None), "messages must be a list"),
    ("one message", lambda llm: llm.chat({"role": "user", "content": "a"}), "messages must be a list"),
    ("no message", lambda llm: llm.chat([]), "messages is empty"),
    ("a message", lambda llm: llm.chat([[None]]), r"messages\[0\]\[0\] must be a dict"),
    ("tools", lambda llm: llm.chat([{"role": "user", "content": "a"}], tools=5), "tools must be a list"),
    ("params", lambda llm: llm.generate("a", 5), "sampling_params must be"),
    ("a dict", lambda llm: llm.generate("a", {"max_tokens": 3}), "sampling_params must be SamplingParams"),
    ("none among them", lambda llm: llm.generate(["a", "b"], [GREEDY, None]), "sampling_params must be"),
    ("priority", lambda llm: llm.generate("a", priority=1), "priority must be a list"),
    ("decode", lambda llm: llm.decode(5), "token_ids must be a list"),
    ("encode", lambda llm: llm.encode(5), "text must be a text"),
    ("score", lambda llm: llm.score("a", None), "data_2 must be a list"),
    ("copy", copy.deepcopy, "open it there"),
    (
        "a limit of reasoning",
        lambda llm: llm.generate("a", SamplingParams(thinking_token_budget=3)),
        "thinking_token_budget cannot be honoured",
    ),
    ("too many", lambda llm: llm.generate("a", SamplingParams(logprobs=21)), "logprobs must be from 0 to 20"),
    ("all", lambda llm: llm.generate("a", SamplingParams(logprobs=-1)), "this gateway's setting max_logprobs is 20"),
    ("which prompt", lambda llm: llm.generate(["a", [9999999]]), "prompt 1: "),
]


@pytest.mark.parametrize(("call", "words"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_a_wrong_argument_is_named(llm: LLM, call: Callable[[LLM], object], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(llm)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stop": 5}, "stop must be a list of texts"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids"),
        ({"bad_words": [1]}, "bad_words must be a list of texts"),
        ({"logit_bias": [1]}, "logit_bias must be a dict"),
        ({"max_tokens": "5"}, "max_tokens must be a whole number"),
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias must be a finite number"),
        ({"detokenize": "no"}, "detokenize must be True or False"),
        ({"min_tokens": 100}, "min_tokens must be from 0 to max_tokens"),
        ({"logprobs": -2}, "logprobs must be at least -1"),
        ({"thinking_token_budget": -2}, "thinking_token_budget must be from -1 to"),
        ({"temperature": -1.0}, "temperature must be from 0 to 100"),
        ({"frequency_penalty": 3}, "frequency_penalty must be from -2 to 2"),
    ],
)
def test_params_are_checked_when_they_are_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        SamplingParams(**fields)
    idle = SamplingParams(logits_processors=[], extra_args={})
    assert idle.clone() == idle
