"""`make ways`: the same prompts in one process, through `LLM(workers=(1, 1))`, and over HTTP; all bits must be equal.

`python -m tests.ways --json` compares the ids of all tokens and every logprob of 500 prompts, and ends with one JSON
object. Status 1 where two ways differ, or where another seed makes no difference, which is the negative control."""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import httpx2

from baton import LLM
from tests.schemas.__main__ import built_in_mesh
from tests.ways.asked import CONTROLS, AskedPrompt, ComparedAnswer, asked, body_of, differences, with_other_seeds

AT_ONCE = 32  # requests in flight over HTTP
MOST_SHOWN = 20  # differences that the JSON object holds


def through_library(prompts: Sequence[AskedPrompt], workers: tuple[int, int] | None) -> list[ComparedAnswer]:
    """`workers` None: in this process."""
    with LLM(workers=workers, threads=1) as llm:
        params = [each.params for each in prompts]
        outputs = llm.generate([each.text for each in prompts], params, use_tqdm=False)
    return [ComparedAnswer.of_library(each.outputs[0]) for each in outputs]


async def over_http(url: str, prompts: Sequence[AskedPrompt]) -> list[ComparedAnswer]:
    places = asyncio.Semaphore(AT_ONCE)
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:

        async def one(prompt: AskedPrompt) -> ComparedAnswer:
            async with places:
                answer = await client.post("/v1/completions", json=body_of(prompt))
            if answer.status_code != 200:
                raise RuntimeError(f"the mesh refuses a prompt: {answer.text}")
            return ComparedAnswer.of_http(answer.json()["choices"][0])

        return list(await asyncio.gather(*map(one, prompts)))


async def through_a_mesh(prompts: Sequence[AskedPrompt]) -> tuple[list[ComparedAnswer], list[ComparedAnswer]]:
    """The answers over HTTP, and those of the sampled prompts with other seeds."""
    with tempfile.TemporaryDirectory() as folder:
        async with built_in_mesh(folder, **{"worker.threads": "1"}) as url:
            return await over_http(url, prompts), await over_http(url, with_other_seeds(prompts))


def run(count: int, seed: int) -> dict[str, Any]:
    began, prompts = time.monotonic(), asked(count, seed)
    alone = through_library(prompts, None)
    mesh = through_library(prompts, (1, 1))
    http, other = asyncio.run(through_a_mesh(prompts))
    sampled = [answer for answer, each in zip(alone, prompts, strict=True) if each.params.temperature > 0][:CONTROLS]
    found = [f"LLM(workers=(1, 1)): {each}" for each in differences(alone, mesh)]
    found += [f"HTTP: {each}" for each in differences(alone, http)]
    return {
        "prompts": count,
        "tokens": sum(len(each.token_ids) for each in alone),
        "logprobs": sum(len(entry) for each in alone for entry in each.logprobs),
        "differences": len(found),
        "examples": found[:MOST_SHOWN],
        "other_seeds_differ": len(differences(sampled, other)),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ways", description=__doc__)
    parser.add_argument("--prompts", type=int, default=500, help="number of prompts")
    parser.add_argument("--seed", type=int, default=1, help="draws the prompts")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    result = run(options.prompts, options.seed)
    print(json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items()))
    return 1 if result["differences"] or not result["other_seeds_differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
