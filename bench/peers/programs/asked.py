"""A peer's program reads points as lines of JSON and answers each with the seconds that it took.

Each program runs in an environment of its own, so this file needs nothing but the standard library."""

import json
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any


def serve(about: dict[str, Any], generate: Callable[[Sequence[Sequence[int]], int], int], vocab: int) -> None:
    """`generate` computes the prompts and so many tokens behind each, and returns how many tokens it made. Each point
    gets other prompts, so that no cache has one."""
    print(json.dumps(about), flush=True)
    seed = 0
    for line in sys.stdin:
        asked = json.loads(line)
        seed += 1
        prompts = [prompt_of(seed * 1000 + row, asked["prompt"], vocab) for row in range(asked["rows"])]
        began = perf_counter()
        made = generate(prompts, asked["tokens"])
        seconds = perf_counter() - began
        if made != asked["rows"] * asked["tokens"]:
            raise SystemExit(f"{made} tokens instead of {asked['rows']} times {asked['tokens']}")
        print(json.dumps({"seconds": seconds}), flush=True)


def prompt_of(seed: int, tokens: int, vocab: int) -> list[int]:
    """Ids that are no special tokens, if those stand at one end of the vocabulary."""
    found, state = list[int](), seed
    for _ in range(tokens):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        found.append(vocab // 4 + (state >> 33) % (vocab // 2))
    return found
