"""`LLM` in one process, behind a mesh of processes, and over HTTP: the same tokens."""

from random import Random

import pytest

from baton import LLM, BeamSearchParams, SamplingParams

pytestmark = pytest.mark.mesh
WORDS = "capital France river number word city the of is a small big green why seven time once".split()


def test_one_process_and_a_mesh_give_the_same_tokens() -> None:
    random = Random(5)
    prompts = [" ".join(random.choices(WORDS, k=random.randint(1, 60))) for _ in range(60)]
    params = [
        SamplingParams(temperature=random.choice((0.0, 1.0)), seed=number, max_tokens=16, logprobs=1)
        for number in range(len(prompts))
    ]
    found = []
    for workers in (None, (1, 1)):
        with LLM(workers=workers, threads=1) as llm:
            found.append(llm.generate(prompts, params, use_tqdm=False))
    alone, mesh = ([each.outputs for each in outputs] for outputs in found)
    assert alone == mesh and len({tuple(each[0].token_ids) for each in alone}) > 20


def test_beams_are_the_same_in_one_process_and_behind_a_mesh_and_the_best_is_never_worse_than_greedy() -> None:
    prompts = ["What is the capital of", "Once upon a time"]
    params = BeamSearchParams(beam_width=4, max_tokens=8)
    found, greedy = [], []
    for workers in (None, (1, 1)):
        with LLM(workers=workers, threads=1) as llm:
            found.append(llm.beam_search(prompts, params, use_tqdm=False))
            greedy = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8, logprobs=0), use_tqdm=False)
    assert found[0] == found[1]
    for output, plain in zip(found[0], greedy, strict=True):
        scores = [each.cum_logprob / max(1, len(each.logprobs)) for each in output.sequences]
        assert len(scores) == 4 and scores == sorted(scores, reverse=True)
        (one,) = plain.outputs
        assert scores[0] >= (one.cumulative_logprob or 0.0) / len(one.token_ids) - 1e-6
        assert len({tuple(each.tokens) for each in output.sequences}) == 4
