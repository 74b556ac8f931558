"""The reference that a mesh is compared with: the engine alone in this process, one request at a time.

Batch 1, the whole prompt in one chunk, no prefix cache, pages of 32 tokens, on a GPU launch by launch: the plainest way
through the same runner. Answers are kept, so that a request which several cells send is computed once per product
path."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

import baton_kernels
from cli.verify.answers import Best, best
from cli.verify.requests import VerifyRequest
from engine.cpu.runner import CpuRunner
from engine.loading.loaded import CpuModel
from engine.selftest.identity import Identity
from engine.step.plan import Piece, Plan

if TYPE_CHECKING:
    from engine.cuda.loaded import CudaModel
    from engine.cuda.runner import CudaRunner

PAGE_TOKENS = 32


class Reference:
    """The engine alone, with a pool for one request. Its owner closes it."""

    def __init__(self, identity: Identity, runner: "CpuRunner | CudaRunner", pages: int) -> None:
        self.identity = identity
        self._runner, self._pages = runner, tuple(range(pages))
        self._turn = Lock()
        self._answers: dict[VerifyRequest, tuple[Best, ...]] = {}

    def run_body(self, body: str) -> None:
        """Choose the body of this whole process. On a GPU the body is always `eager`, with which the model was
        loaded."""
        if isinstance(self._runner, CpuRunner):
            baton_kernels.choose(body)

    def answer(self, request: VerifyRequest) -> tuple[Best, ...]:
        if request not in self._answers:
            self._answers[request] = tuple(self._compute(request))
        return self._answers[request]

    def answers(self, requests: Sequence[VerifyRequest]) -> tuple[tuple[Best, ...], ...]:
        with self._turn:  # cells that are checked side by side share this engine
            return tuple(self.answer(request) for request in requests)

    def close(self) -> None:
        self._runner.close()

    def _compute(self, request: VerifyRequest) -> list[Best]:
        out: list[Best] = []
        tokens, start = request.prompt, 0
        for position in range(request.sampling.max_tokens):
            piece = Piece(
                key=0,
                tokens=tokens,
                start=start,
                pages=self._pages,
                sampled=1,
                position=position,
                sampling=request.sampling,
            )
            ((one,),) = self._runner.compute(Plan(position, (piece,))).sampled
            out.append(best(one.token, one.logprob, one.top_ids, one.top_logprobs))
            tokens, start = (one.token,), piece.stop
        return out


def on_cpu(model: CpuModel, *, most_slots: int, threads: int | None = None) -> Reference:
    """A reference for `model`, which must have pages of PAGE_TOKENS."""
    pages = -(-most_slots // PAGE_TOKENS)
    pool = np.zeros(pages * model.shape.page_bytes, np.uint8)
    return Reference(model.identity, model.runner(pool, threads=threads or len(os.sched_getaffinity(0))), pages)


def on_gpu(model: "CudaModel", *, most_slots: int) -> Reference:
    """A reference for `model` on its own device."""
    import torch

    pages = -(-most_slots // PAGE_TOKENS)
    pool = torch.zeros(pages * model.shape.page_bytes, dtype=torch.uint8, device=model.weights.device)
    return Reference(model.identity, replace(model, body="eager").runner(pool, threads=1), pages)


def on_first_gpu(path: str, folder: Path, cache: Path, *, most_slots: int) -> Reference:
    """A reference on the first GPU, on product path `path` whatever the environment names."""
    import torch

    from engine.cuda.loaded import load_on_device

    here = torch.device("cuda", torch.cuda.current_device())
    model = load_on_device(folder, cache, here, path=path, page_tokens=PAGE_TOKENS)
    return on_gpu(model, most_slots=most_slots)
