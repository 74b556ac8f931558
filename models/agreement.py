"""Checks that three programs give the same answers with the same weights: our training network, the engine and
transformers.

The engine runs two product paths: fp32, which computes what torch computes, and pairs, which is served."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine.cpu.runner import CpuRunner
from engine.model.page_memory import layer_bytes
from engine.model.weights import open_weights
from engine.step.plan import Piece, Plan
from mesh.messages.jobs import Sampling

_PAGE_TOKENS = 32
_PAGES = 24


def engine_answers(
    folder: Path, prompts: Sequence[Sequence[int]], *, most: int, end: int, product_path: str = "auto"
) -> list[list[int]]:
    """The engine's greedy answers, one prompt after the other."""
    with tempfile.TemporaryDirectory() as cache:
        weights = open_weights(folder, Path(cache), product_path=product_path)
        pool = np.zeros(_PAGES * layer_bytes(weights, _PAGE_TOKENS) * weights.config.layers, np.uint8)
        runner = CpuRunner(weights, pool_buffer=pool, page_tokens=_PAGE_TOKENS, threads=torch.get_num_threads())
        try:
            return [_engine_answer(runner, prompt, most, end) for prompt in prompts]
        finally:
            runner.close()


def transformers_answers(folder: Path, prompts: Sequence[Sequence[int]], *, most: int, end: int) -> list[list[int]]:
    """The greedy answers of transformers in fp32, up to the tokenizer's end token."""
    from transformers import AutoModelForCausalLM  # a development dependency, and slow to import

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    out = []
    for prompt in prompts:
        tokens = torch.tensor([list(prompt)])
        made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=most, do_sample=False)
        out.append([int(token) for token in made[0, len(prompt) :]])
    return out


def _engine_answer(runner: CpuRunner, prompt: Sequence[int], most: int, end: int) -> list[int]:
    tokens, start = tuple(prompt), 0
    out: list[int] = []
    while len(out) < most and (not out or out[-1] != end):
        piece = Piece(1, tokens, start, tuple(range(_PAGES)), 1, len(out), Sampling(temperature=0.0))
        token = runner.compute(Plan(len(out), (piece,))).sampled[0][0].token
        out.append(token)
        start, tokens = start + len(tokens), (token,)
    return out
