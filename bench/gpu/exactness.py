"""Section `exactness`: a request yields the same tokens and logprob bits in whatever way this device computes it.

Each prompt is answered alone first: in one chunk, launch by launch. Then it is answered in a batch, in chunks, by
graphs, with drafts verified in the same step (right and wrong ones, made up or a draft model's), and with steps that
follow others before these are read. Every difference counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch

from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, show
from bench.gpu.random_model import DRY, LLAMA_8B, as_draft, on_device
from engine.cuda.page_shapes import page_shapes
from engine.cuda.products import products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.weights import DeviceWeights
from engine.drafts.acceptance import accepted, next_slot
from engine.step.plan import Drafting, Piece, Plan, Sampled
from mesh.messages.jobs import Sampling

PAGE_TOKENS = 16
NOISE = 0.25  # added to the draft model's head, so that it is often right and often wrong
Answer = tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to compute requests."""

    name: str
    batch: int = 1
    chunk: int = 1 << 20
    graphs: bool = False
    drafts: int = 0  # drafts per request and step
    model: bool = False  # True: a draft model proposes. False: drafts are the known answer, but the last one is wrong
    follow: bool = False  # steps follow the ones before without being read


def ways(batch: int, chunk: int) -> tuple[Way, ...]:
    return (
        Way(f"batch {batch}", batch=batch),
        Way(f"chunks of {chunk}", chunk=chunk),
        Way("graphs", graphs=True),
        Way("graphs, followed before it is read", graphs=True, follow=True),
        Way("drafts", drafts=4),
        Way(f"all: batch {batch}, chunks, graphs, drafts", batch, chunk, True, 4),
        Way(f"all, and a draft model: batch {batch}", batch, chunk, True, 4, model=True),
    )


@dataclass(slots=True)
class DraftTally:
    """How many proposals of a draft model were verified, and how many were right."""

    verified: int = 0
    right: int = 0


def measure(clock: Clock) -> None:
    real = clock.real
    config = replace(LLAMA_8B, layers=4) if real else DRY
    prompts = [prompt(length, number) for number, length in enumerate([33, 400, 1500, 700] * 16 if real else [5, 22])]
    tally = DraftTally()
    weights = on_device(config, clock.device)
    differences = check(weights, prompts, 24 if real else 3, batch=64 if real else 2, tally=tally)
    for way, count in differences.items():
        show(Figure(f"answers that differ: {way}", count, f"of {len(prompts)}", at_most=0))
    show(Figure("drafts of the draft model that were right", tally.right / tally.verified, f"of {tally.verified}"))


def check(
    weights: DeviceWeights, prompts: Sequence[Sequence[int]], tokens: int, *, batch: int, tally: DraftTally
) -> dict[str, int]:
    """For each way, how many answers differ from those of each prompt alone."""
    sampling = [
        Sampling(temperature=0.8 * (i % 2), top_p=0.9, seed=i, top_logprobs=2, max_tokens=tokens)
        for i in range(len(prompts))
    ]
    case = ExactnessCase(weights, as_draft(weights, NOISE), prompts, sampling, tokens, tally)
    alone = case.answers(Way("alone"), ())
    counts = {}
    for way in ways(batch, max(map(len, prompts)) // 3):
        found = case.answers(way, alone)
        counts[way.name] = sum(one != other for one, other in zip(found, alone, strict=True))
    return counts


@dataclass(frozen=True, slots=True)
class ExactnessCase:
    """The requests of a check, and the models that answer them."""

    weights: DeviceWeights
    draft: DeviceWeights
    prompts: Sequence[Sequence[int]]
    sampling: Sequence[Sampling]
    tokens: int
    tally: DraftTally

    def answers(self, way: Way, known: Sequence[Answer]) -> list[Answer]:
        said = list[Answer]()
        for first in range(0, len(self.prompts), way.batch):
            part = slice(first, first + way.batch)
            said += _group(replace(self, prompts=self.prompts[part], sampling=self.sampling[part]), way, known[part])
        return said


def _group(case: ExactnessCase, way: Way, known: Sequence[Answer]) -> list[Answer]:
    draft = case.draft if way.model else None
    longest = max(map(len, case.prompts)) + case.tokens + 2 * way.drafts + 1
    each = -(-longest // PAGE_TOKENS)
    size = len(case.prompts) * each * page_shapes(case.weights, draft, PAGE_TOKENS)[0].page_bytes
    pool = torch.full((size,), 0xFF, dtype=torch.uint8, device=case.weights.device)  # what is not written is NaN
    runner = CudaRunner(
        case.weights, draft=draft, pool=pool, page_tokens=PAGE_TOKENS, products=products_for("exact"),
        graphs=way.graphs, max_batch=max(64, way.batch),
    )  # fmt: skip
    try:
        return _Group(runner, case, way, known, each).answers()
    finally:
        runner.close()


class _Group:
    def __init__(self, runner: CudaRunner, case: ExactnessCase, way: Way, known: Sequence[Answer], each: int) -> None:
        self._runner, self._prompts, self._sampling, self._tokens = runner, case.prompts, case.sampling, case.tokens
        self._way, self._known, self._each, self._tally = way, known, each, case.tally
        self._said: list[list[Sampled]] = [[] for _ in self._prompts]
        self._drafts: dict[int, tuple[int, ...]] = {}  # what the draft model proposed last, by request
        self._read = [0] * len(self._prompts)  # slots that the draft model has read, by request

    def answers(self) -> list[Answer]:
        for start in range(0, max(map(len, self._prompts)), self._way.chunk):
            self._step([piece for key in range(len(self._prompts)) if (piece := self._chunk(key, start))])
        if self._way.follow:
            self._followed()
        while busy := [key for key, said in enumerate(self._said) if len(said) < self._tokens]:
            self._step([self._next(key) for key in busy])
        return [tuple(said[: self._tokens]) for said in self._said]

    def _step(self, pieces: Sequence[Piece]) -> None:
        result = self._runner.compute(Plan(0, tuple(pieces)))
        for piece, sampled, proposed in zip(pieces, result.sampled, result.proposed or repeat(()), strict=False):
            count = accepted(piece, sampled)
            self._said[piece.key] += sampled[: count + 1]
            self._read[piece.key] = next_slot(piece, count) + len(proposed)
            if self._way.model and piece.sampled:
                self._drafts[piece.key] = proposed
                self._tally.verified += piece.sampled - 1
                self._tally.right += count

    def _followed(self) -> None:
        """Launches all steps, then reads them all."""
        launched = [
            self._runner.launch(
                Plan(at, tuple(self._row(key, (0,), at, follows=True) for key in range(len(self._said)))), layers=False
            )
            for at in range(1, self._tokens)
        ]
        for one in launched:
            for said, sampled in zip(self._said, self._runner.finish(one, None).sampled, strict=True):
                said += sampled

    def _chunk(self, key: int, start: int) -> Piece | None:
        prompt = self._prompts[key]
        part = tuple(prompt[start : start + self._way.chunk])
        if not part:
            return None
        last = start + len(part) == len(prompt)
        drafting = Drafting(start, (), self._way.drafts * last) if self._way.model else None
        return Piece(key, part, start, self._pages(key), int(last), 0, self._sampling[key] if last else None, drafting)

    def _next(self, key: int) -> Piece:
        """The last token with drafts behind it: those of the draft model, or the known answer with a wrong last one."""
        said = self._said[key]
        if self._way.model:
            drafting = Drafting(self._read[key], (), self._way.drafts)
            return self._row(key, (said[-1].token, *self._drafts[key]), len(said), drafting=drafting)
        ahead = self._known[key] if self._way.drafts else ()
        drafts = [one.token for one in ahead[len(said) : len(said) + self._way.drafts]]
        if len(drafts) > 1:
            drafts[-1] ^= 1
        return self._row(key, (said[-1].token, *drafts), len(said))

    def _row(self, key: int, tokens: tuple[int, ...], position: int, **more: Any) -> Piece:
        start = len(self._prompts[key]) + position - 1
        return Piece(key, tokens, start, self._pages(key), len(tokens), position, self._sampling[key], **more)

    def _pages(self, key: int) -> tuple[int, ...]:
        return tuple(range(key * self._each, key * self._each + self._each))


def prompt(length: int, seed: int) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 256, (length,), generator=draw)]
