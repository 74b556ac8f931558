"""The whole vocabulary's logprobs and limits of reasoning, from Python to the engine of the built-in model and back."""

from collections.abc import Iterator

import pytest

from baton import LLM, SamplingParams

PROMPT = "Is the hand-off fast? <think>"
MARK = "</think>"


@pytest.fixture(scope="module", params=["off", "auto"], ids=["plain", "drafts"])
def reasoning(request: pytest.FixtureRequest) -> Iterator[LLM]:
    """The built-in model as if it reasoned, with and without its draft."""
    with LLM(threads=1, speculation=request.param, gateway__reasoning_format="think", max_logprobs=-1) as made:
        yield made


def test_the_whole_vocabulary_is_listed_with_the_bits_of_a_short_list(reasoning: LLM) -> None:
    short, long = (
        reasoning.generate(
            "Once upon a time",
            SamplingParams(temperature=0.0, max_tokens=2, logprobs=count, prompt_logprobs=count, ignore_eos=True),
            use_tqdm=False,
        )[0]
        for count in (3, -1)
    )
    few, all_of_them = short.outputs[0].logprobs, long.outputs[0].logprobs
    assert few is not None and all_of_them is not None
    sizes = {len(each) for each in all_of_them}
    assert len(sizes) == 1 and min(sizes) > 1000 and all(None not in each for each in all_of_them)
    for one, every in zip(few, all_of_them, strict=True):
        assert [(token, about.logprob, about.rank) for token, about in one.items()] == [
            (token, about.logprob, about.rank) for token, about in list(every.items())[: len(one)]
        ]
        assert sorted(about.rank or 0 for about in every.values()) == list(range(1, len(every) + 1))
    assert long.prompt_logprobs is not None and {len(each) for each in long.prompt_logprobs if each} == sizes


@pytest.mark.parametrize("budget", [0, 1, 6])
def test_reasoning_ends_behind_so_many_tokens_and_the_answer_goes_on(reasoning: LLM, budget: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, skip_special_tokens=False)
    (free,) = reasoning.generate(PROMPT, params, use_tqdm=False)
    assert MARK not in free.outputs[0].text, "negative control: the model does not end by itself"
    params.thinking_token_budget = budget
    (limited,) = reasoning.generate(PROMPT, params, use_tqdm=False)
    answer, mark = limited.outputs[0], len(reasoning.encode(MARK))
    thought, _, rest = answer.text.partition(MARK)
    assert MARK in answer.text and MARK not in rest
    assert reasoning.decode(answer.token_ids[:budget]) == thought and len(answer.token_ids) == 48
    assert answer.token_ids[:budget] == free.outputs[0].token_ids[:budget]
    assert reasoning.decode(answer.token_ids[: budget + mark]).endswith(MARK)
    again = reasoning.generate([PROMPT, "Once", PROMPT], params, use_tqdm=False)
    assert again[0].outputs[0].token_ids == again[2].outputs[0].token_ids == answer.token_ids


def test_outside_of_reasoning_a_limit_changes_nothing(reasoning: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
    plain, limited = (
        reasoning.generate("Once upon a time", each, use_tqdm=False)[0].outputs[0].token_ids
        for each in (params, SamplingParams(**{**vars(params), "thinking_token_budget": 0}))
    )
    assert plain == limited
