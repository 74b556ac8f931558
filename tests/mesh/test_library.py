"""`LLM` in one process, behind a mesh of processes, and over HTTP: the same tokens."""

from random import Random

import pytest

from baton import LLM, SamplingParams

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
