"""Baton computes points in one process, as its workers do.

`python -m bench.peers.baton_points MODEL QUANTIZE THREADS PATH`: QUANTIZE is int8, int4 or none, PATH that of the
products in 16 bits. A prompt is one step, and so is each token of all sequences behind it."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.peers.programs.asked import serve
from engine.cpu.runner import CpuRunner
from engine.model.page_memory import layer_bytes
from engine.model.weights import open_weights
from engine.step.plan import Piece, Plan
from mesh.config.common_config import default_cache_folder
from mesh.messages.jobs import Sampling

PAGE_TOKENS = 32
POOL_TOKENS = 64 * 256


def main() -> None:
    model, quantize, threads, path = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    quantize = "" if quantize == "none" else quantize
    weights = open_weights(model, default_cache_folder(), product_path=path, quantize=quantize)
    pages = POOL_TOKENS // PAGE_TOKENS
    pool = np.zeros(pages * layer_bytes(weights, PAGE_TOKENS) * weights.config.layers, np.uint8)
    runner = CpuRunner(weights, pool_buffer=pool, page_tokens=PAGE_TOKENS, threads=threads)

    def generate(prompts: Sequence[Sequence[int]], tokens: int) -> int:
        each = -(-(len(prompts[0]) + tokens) // PAGE_TOKENS)
        owned = [tuple(range(row * each, (row + 1) * each)) for row in range(len(prompts))]
        given: list[tuple[int, ...]] = [tuple(prompt) for prompt in prompts]
        position, made = 0, 0
        for _ in range(tokens):
            pieces = tuple(
                Piece(row, given[row], position, owned[row], 1, position, Sampling()) for row in range(len(prompts))
            )
            done = runner.compute(Plan(0, pieces))
            position += len(given[0])
            given = [(rows[0].token,) for rows in done.sampled]
            made += len(given)
        return made

    serve({"engine": "Baton", "version": weights.products}, generate, weights.config.vocab)


if __name__ == "__main__":
    main()
