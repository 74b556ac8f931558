"""`make ways` notices any other token and any other logprob bit, and asks every way the same."""

import numpy as np

from baton import CompletionOutput
from library.outputs import Logprob
from tests.ways.asked import ComparedAnswer, asked, body_of, differences, with_other_seeds

CHOICE = {
    "token_ids": [7, 9],
    "logprobs": {
        "tokens": ["token_id:7", "token_id:9"],
        "token_logprobs": [-0.5, -2.0],
        "top_logprobs": [{"token_id:7": -0.5, "token_id:8": -1.0}, None],
    },
}


def test_both_shapes_of_an_answer_compare_equal_and_one_bit_makes_a_difference() -> None:
    listed = [{7: Logprob(-0.5), 8: Logprob(-1.0)}, {9: Logprob(-2.0)}]
    library = ComparedAnswer.of_library(CompletionOutput(0, "ab", [7, 9], logprobs=listed))
    http = ComparedAnswer.of_http(CHOICE)
    assert differences([library], [http]) == []
    listed[0][8] = Logprob(float(np.nextafter(np.float32(-1.0), np.float32(0))))
    other = ComparedAnswer.of_library(CompletionOutput(0, "ab", [7, 9], logprobs=listed))
    assert len(differences([library, other], [http, http])) == 1
    shorter = ComparedAnswer.of_library(CompletionOutput(0, "a", [7], logprobs=listed[:1]))
    assert "tokens [7] and [7, 9]" in differences([shorter], [http])[0]


def test_prompts_are_short_and_long_greedy_and_sampled_and_the_same_for_a_seed() -> None:
    prompts = asked(60, 1)
    sampled = [each for each in prompts if each.params.temperature > 0]
    lengths = {len(each.text.split()) for each in prompts}
    assert prompts == asked(60, 1) != asked(60, 2) and len(sampled) == 30
    assert min(lengths) < 3 and max(lengths) > 50
    others = with_other_seeds(prompts)
    assert [each.text for each in others] == [each.text for each in sampled]
    assert all(one.params.seed != other.params.seed for one, other in zip(sampled, others, strict=True))
    assert all(body_of(each)["logprobs"] == each.params.logprobs for each in prompts)
