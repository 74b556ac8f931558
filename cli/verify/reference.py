"""The reference: the engine alone in this process, one request at a time.

Batch 1, the whole prompt in one chunk, no prefix cache, pages of 32, on a GPU launch by launch: the plainest way
through the same runner. Answers are kept: a prompt which several cells ask is computed once per product path."""

import os
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

import baton_kernels
from cli.verify.answers import Best, best
from cli.verify.asks import Ask
from engine.identity import Identity
from engine.loaded import CpuModel
from engine.plan import Piece, Plan
from engine.runner import CpuRunner

if TYPE_CHECKING:
    from engine.cuda.loaded import CudaModel
    from engine.cuda.runner import CudaRunner

PAGE_TOKENS = 32


class Alone:
    """Whoever makes it closes it."""

    def __init__(self, identity: Identity, runner: "CpuRunner | CudaRunner", pages: int) -> None:
        self.identity = identity
        self._runner, self._pages = runner, tuple(range(pages))
        self._turn = Lock()
        self._known: dict[Ask, tuple[Best, ...]] = {}

    def run_body(self, body: str) -> None:
        """From now on, in this whole process. On a GPU it is always `eager`, which the model was opened with."""
        if isinstance(self._runner, CpuRunner):
            baton_kernels.choose(body)

    def answer(self, ask: Ask) -> tuple[Best, ...]:
        if ask not in self._known:
            self._known[ask] = tuple(self._compute(ask))
        return self._known[ask]

    def answers(self, asks: Sequence[Ask]) -> tuple[tuple[Best, ...], ...]:
        with self._turn:  # cells that are checked side by side share this engine
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


def on_cpu(model: CpuModel, *, most_slots: int, threads: int | None = None) -> Alone:
    """`model` with pages of PAGE_TOKENS."""
    pages = -(-most_slots // PAGE_TOKENS)
    pool = np.zeros(pages * model.page_bytes, np.uint8)
    return Alone(model.identity, model.runner(pool, threads=threads or len(os.sched_getaffinity(0))), pages)


def on_gpu(model: "CudaModel", *, most_slots: int) -> Alone:
    import torch

    pages = -(-most_slots // PAGE_TOKENS)
    pool = torch.zeros(pages * model.page_bytes, dtype=torch.uint8, device=model.weights.device)
    return Alone(model.identity, replace(model, body="eager").runner(pool, threads=1), pages)
