"""Section `exactness`: the same tokens and logprob bits whatever is done to a request on this device.

Each prompt is answered alone, its prompt in one chunk, launch by launch; then in a batch, in chunks, as graphs, with
drafts (right ones and wrong ones, made up or a draft model's) verified in the same step, and followed before they are
read. Any difference counts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import torch

from bench.gpu.clock import Clock
from bench.gpu.figures import Figure, show
from bench.gpu.random_model import DRY, LLAMA_8B, as_draft, on_device
from engine.acceptance import accepted, next_slot
from engine.cuda.page_shapes import page_shapes
from engine.cuda.products import products_for
from engine.cuda.runner import CudaRunner
from engine.cuda.weights import DeviceWeights
from engine.plan import Drafting, Piece, Plan, Sampled
from mesh.messages import Sampling

PAGE_TOKENS = 16
NOISE = 0.25  # of the draft model: often right and often not
Answer = tuple[Sampled, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are carried out."""

    name: str
    batch: int = 1
    chunk: int = 1 << 20
    graphs: bool = False
    drafts: int = 0  # in a step
    model: bool = False  # a draft model proposes them, else they are what is known to come, but for the last
    follow: bool = False


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
class Tally:
    """Of a draft model's proposals."""

    verified: int = 0
    right: int = 0


def measure(clock: Clock) -> None:
    real = clock.real
    config = replace(LLAMA_8B, layers=4) if real else DRY
    prompts = [prompt(length, number) for number, length in enumerate([33, 400, 1500, 700] * 16 if real else [5, 22])]
    tally = Tally()
    weights = on_device(config, clock.device)
    differences = check(weights, prompts, 24 if real else 3, batch=64 if real else 2, tally=tally)
    for way, count in differences.items():
        show(Figure(f"answers that differ: {way}", count, f"of {len(prompts)}", at_most=0))
    show(Figure("drafts of the draft model that were right", tally.right / tally.verified, f"of {tally.verified}"))


def check(
    weights: DeviceWeights, prompts: Sequence[Sequence[int]], tokens: int, *, batch: int, tally: Tally
) -> dict[str, int]:
    """Answers that differ from those of each prompt alone, by the way they were made."""
    wishes = [
        Sampling(temperature=0.8 * (i % 2), top_p=0.9, seed=i, top_logprobs=2, max_tokens=tokens)
        for i in range(len(prompts))
    ]
    asked = Asked(weights, as_draft(weights, NOISE), prompts, wishes, tokens, tally)
    alone = asked.answers(Way("alone"), ())
    counts = {}
    for way in ways(batch, max(map(len, prompts)) // 3):
        found = asked.answers(way, alone)
        counts[way.name] = sum(one != other for one, other in zip(found, alone, strict=True))
    return counts


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests, and the models that answer them."""

    weights: DeviceWeights
    draft: DeviceWeights
    prompts: Sequence[Sequence[int]]
    wishes: Sequence[Sampling]
    tokens: int
    tally: Tally

    def answers(self, way: Way, known: Sequence[Answer]) -> list[Answer]:
        said = list[Answer]()
        for first in range(0, len(self.prompts), way.batch):
            part = slice(first, first + way.batch)
            said += _group(replace(self, prompts=self.prompts[part], wishes=self.wishes[part]), way, known[part])
        return said


def _group(asked: Asked, way: Way, known: Sequence[Answer]) -> list[Answer]:
    draft = asked.draft if way.model else None
    longest = max(map(len, asked.prompts)) + asked.tokens + 2 * way.drafts + 1
    each = -(-longest // PAGE_TOKENS)
    size = len(asked.prompts) * each * page_shapes(asked.weights, draft, PAGE_TOKENS)[0].page_bytes
    pool = torch.full((size,), 0xFF, dtype=torch.uint8, device=asked.weights.device)  # unwritten: no number
    runner = CudaRunner(
        asked.weights, draft=draft, pool=pool, page_tokens=PAGE_TOKENS, products=products_for("exact"),
        graphs=way.graphs, max_batch=max(64, way.batch),
    )  # fmt: skip
    try:
        return _Group(runner, asked, way, known, each).answers()
    finally:
        runner.close()


class _Group:
    def __init__(self, runner: CudaRunner, asked: Asked, way: Way, known: Sequence[Answer], each: int) -> None:
        self._runner, self._prompts, self._wishes, self._tokens = runner, asked.prompts, asked.wishes, asked.tokens
        self._way, self._known, self._each, self._tally = way, known, each, asked.tally
        self._said: list[list[Sampled]] = [[] for _ in self._prompts]
        self._drafts: dict[int, tuple[int, ...]] = {}  # of the draft model
        self._read = [0] * len(self._prompts)  # slots that it has read

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
        """All steps launched, then all read."""
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
        return Piece(key, part, start, self._pages(key), int(last), 0, self._wishes[key] if last else None, drafting)

    def _next(self, key: int) -> Piece:
        """The last token with drafts behind it: the draft model's, or what is known to come, but for a wrong one at
        the end."""
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
        return Piece(key, tokens, start, self._pages(key), len(tokens), position, self._wishes[key], **more)

    def _pages(self, key: int) -> tuple[int, ...]:
        return tuple(range(key * self._each, key * self._each + self._each))


def prompt(length: int, seed: int) -> list[int]:
    draw = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(0, 256, (length,), generator=draw)]
