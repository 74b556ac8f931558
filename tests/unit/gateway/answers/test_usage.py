"""Usage adds up over choices and prompts; times are those of the slowest choice."""

from dataclasses import dataclass, replace
from typing import Any, cast

from gateway.answers.usage import TokenUsage, timings_of, usage_of
from gateway.core.interface import Timings

FAST = Timings(None, 0.5, 1.0, 0.125, 2.0, 3.0, 1, 4, 8, 5, 10)
SLOW = replace(FAST, queue_seconds=0.25, first_token_seconds=1.5, accepted_tokens=0, decode_steps=20, cached_tokens=6)


@dataclass
class CountedAnswer:
    prompt_tokens: int
    completion_tokens: int
    timings: tuple[Timings, ...]
    reasoning_tokens: int = 0

    @property
    def cached_tokens(self) -> int:
        return max(each.cached_tokens for each in self.timings)


def answers(*found: CountedAnswer) -> Any:
    return cast(Any, found)


def test_choices_of_one_prompt_share_its_cached_pages_and_prompts_add_up() -> None:
    usage = usage_of(answers(CountedAnswer(9, 20, (FAST, SLOW)), CountedAnswer(7, 3, (FAST,))))
    assert usage == TokenUsage(16, 23, cached_tokens=10, drafted_tokens=24, accepted_tokens=10)


def test_times_are_of_the_slowest_choice_and_unmeasured_ones_are_left_out() -> None:
    found = timings_of(answers(CountedAnswer(9, 20, (FAST, SLOW))))
    assert found["queue_seconds"] == 0.25 and found["first_token_seconds"] == 1.5
    assert found["decode_steps"] == 20 and found["tokens_per_step"] == 35 / 30
    assert "queue_seconds" not in timings_of(answers(CountedAnswer(9, 20, (FAST,))))


def test_an_answer_for_which_nothing_ran_has_no_times() -> None:
    assert timings_of(answers(CountedAnswer(9, 20, ()))) == {}
