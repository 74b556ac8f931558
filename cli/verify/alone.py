"""The reference: the engine alone in this process, one request at a time.

Batch 1, the whole prompt in one chunk, no prefix cache, pages of 32: the plainest way through the same runner. Answers
are kept, so that a prompt which several cells ask is computed once per product path."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import baton_kernels
from cli.verify.answers import Best, best
from cli.verify.asks import Ask
from engine.opened import OpenedModel, open_model
from engine.plan import Piece, Plan

PAGE_TOKENS = 32


class Alone:
    def __init__(
        self, folder: Path, cache_folder: Path, *, path: str, most_slots: int, threads: int | None = None
    ) -> None:
        self.model: OpenedModel = open_model(folder, cache_folder, product_path=path, page_tokens=PAGE_TOKENS)
        self._pages = tuple(range(-(-most_slots // PAGE_TOKENS)))
        pool = np.zeros(len(self._pages) * self.model.page_bytes, np.uint8)
        self._runner = self.model.runner(pool, threads=threads or len(os.sched_getaffinity(0)))
        self._known: dict[Ask, tuple[Best, ...]] = {}

    def run_body(self, body: str) -> None:
        """From now on, in this whole process."""
        baton_kernels.choose(body)

    def answer(self, ask: Ask) -> tuple[Best, ...]:
        if ask not in self._known:
            self._known[ask] = tuple(self._compute(ask))
        return self._known[ask]

    def answers(self, asks: Sequence[Ask]) -> tuple[tuple[Best, ...], ...]:
        return tuple(self.answer(ask) for ask in asks)

    def close(self) -> None:
        self._runner.close()

    def _compute(self, ask: Ask) -> list[Best]:
        out: list[Best] = []
        tokens, start = ask.prompt, 0
        for position in range(ask.sampling.max_tokens):
            piece = Piece(
                key=0,
                tokens=tokens,
                start=start,
                pages=self._pages,
                sampled=1,
                position=position,
                sampling=ask.sampling,
            )
            ((one,),) = self._runner.compute(Plan(position, (piece,))).sampled
            out.append(best(one.token, one.logprob, one.top_ids, one.top_logprobs))
            tokens, start = (one.token,), piece.stop
        return out
