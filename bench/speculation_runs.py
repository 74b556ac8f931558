"""Runs requests in decode through the engine's runner as decode's loop does: same pieces, same draft lengths.

There is no network and no emission: the benchmark compares the engine with and without drafts. A script may replace
what the draft model proposed; the draft model computes nevertheless."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from bench.speculation_figures import Run
from decode_svc.speculation.draft_length import Acceptance, Candidate
from engine.drafts.acceptance import accepted, next_slot
from engine.loading.loaded import CpuModel
from engine.step.batch import decode_piece, pages_needed
from engine.step.plan import Drafting, Piece, Plan, Result
from mesh.messages.jobs import End, Sampling

CHUNK = 512


class Pacing(Protocol):
    """The methods of `DraftLengths` (decode_svc/speculation/draft_length.py) that a run uses."""

    def lengths(self, candidates: Sequence[Candidate]) -> list[int]: ...

    def note(self, acceptance: Acceptance, drafts: int, accepted: int) -> None: ...

    def measure(self, batch: int, drafts: int, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same number of drafts in every step, to measure acceptance and not speed."""

    length: int

    def lengths(self, candidates: Sequence[Candidate]) -> list[int]:
        return [min(self.length, candidate.most) for candidate in candidates]

    def note(self, acceptance: Acceptance, drafts: int, accepted: int) -> None:
        """Nothing is learned."""

    def measure(self, batch: int, drafts: int, seconds: float) -> None:
        """Nothing is learned."""


@dataclass(frozen=True, slots=True)
class ScriptedRequest:
    prompt: tuple[int, ...]
    sampling: Sampling
    script: tuple[int, ...] = ()  # drafts for each position, in place of the draft model's proposals


@dataclass(slots=True)
class _Decoding:
    key: int
    request: ScriptedRequest
    pages: tuple[int, ...]
    tokens: list[int]
    bits: list[bytes] = field(default_factory=list)
    filled: int = 0
    read: int = 0  # tokens that the draft model has read
    drafts: tuple[int, ...] = ()
    acceptance: Acceptance = field(default_factory=Acceptance)
    end: End = End.NONE

    @property
    def left(self) -> int:
        return self.request.sampling.max_tokens - len(self.bits)

    @property
    def unread(self) -> tuple[int, ...]:
        return tuple(self.tokens[self.read : self.filled])

    def piece(self, length: int, page_tokens: int) -> Piece:
        drafts = self.drafts[: min(length, self.left - 1)]
        propose = max(0, min(length, self.left - 2, self.left - len(drafts)))
        return decode_piece(
            self.key,
            (self.tokens[-1], *drafts),
            self.filled,
            self.pages,
            page_tokens=page_tokens,
            sampling=self.request.sampling,
            position=len(self.bits),
            drafting=Drafting(self.read, self.unread, propose) if propose else None,
        )

    def take(self, piece: Piece, result: Result, index: int) -> int:
        """Take a step's tokens; the number of accepted drafts."""
        sampled = result.sampled[index]
        count = accepted(piece, sampled)
        for row in sampled[: count + 1]:
            self.tokens.append(row.token)
            self.bits.append(struct.pack("<f", row.logprob))
        self.end = self.request.sampling.end(len(self.bits) - 1, self.tokens[-1])
        self.filled = next_slot(piece, count)
        proposed = result.proposed[index] if result.proposed else ()
        self.read = self.filled + len(proposed) if piece.drafting else min(self.read, piece.start)
        self.drafts = self.request.script[len(self.bits) :][: len(proposed)] if self.request.script else proposed
        return count


class Bed:
    """A model, its draft model and a pool for `requests` requests of `slots` slots at once."""

    def __init__(self, model: CpuModel, *, threads: int, requests: int, slots: int) -> None:
        self.model, self._page_tokens = model, model.page_tokens
        self._per = pages_needed(min(slots, model.context_tokens), model.page_tokens)
        pool = np.zeros(requests * self._per * model.shape.page_bytes, np.uint8)
        self._runner = model.runner(pool, threads=threads)

    async def together(self, requests: Sequence[ScriptedRequest], controller: Pacing) -> Run:
        """All requests in one batch, from their first token to their last."""
        decodings = [self._start(key, request) for key, request in enumerate(requests)]
        for decoding in decodings:
            await self._prefill(decoding)
        steps = proposed = taken = looked_at = 0
        began = perf_counter()
        while running := [decoding for decoding in decodings if decoding.end is End.NONE]:
            candidates = [Candidate(each.acceptance, max(0, each.left - 1), len(each.unread)) for each in running]
            lengths = controller.lengths(candidates)
            pieces = [each.piece(length, self._page_tokens) for each, length in zip(running, lengths, strict=True)]
            before = perf_counter()
            result = await self._runner.run(Plan(steps, tuple(pieces)))
            seconds, steps = perf_counter() - before, steps + 1
            for index, (decoding, piece) in enumerate(zip(running, pieces, strict=True)):
                drafts, count = piece.sampled - 1, decoding.take(piece, result, index)
                if drafts:
                    controller.note(decoding.acceptance, drafts, count)
                    proposed, taken, looked_at = proposed + drafts, taken + count, looked_at + min(count + 1, drafts)
            _measure(controller, pieces, seconds)
        seconds = perf_counter() - began
        return Run(seconds, tuple(map(_text, decodings)), steps, proposed, taken, looked_at)

    async def one_by_one(self, requests: Sequence[ScriptedRequest], controller: Pacing) -> Run:
        """Each request alone, one after the other."""
        runs = [await self.together([request], controller) for request in requests]
        return Run(
            seconds=sum(run.seconds for run in runs),
            texts=tuple(text for run in runs for text in run.texts),
            steps=sum(run.steps for run in runs),
            proposed=sum(run.proposed for run in runs),
            accepted=sum(run.accepted for run in runs),
            looked_at=sum(run.looked_at for run in runs),
        )

    def close(self) -> None:
        self._runner.close()

    def _start(self, key: int, request: ScriptedRequest) -> _Decoding:
        most = self._per * self._page_tokens - len(request.prompt)
        sampling = replace(request.sampling, max_tokens=min(request.sampling.max_tokens, most))
        pages = tuple(range(key * self._per, (key + 1) * self._per))
        return _Decoding(key, replace(request, sampling=sampling), pages, list(request.prompt))

    async def _prefill(self, decoding: _Decoding) -> None:
        """The draft model reads the prompt too, whether or not it will draft."""
        tokens, sampling = decoding.request.prompt, decoding.request.sampling
        for first in range(0, len(tokens), CHUNK):
            rows = tokens[first : first + CHUNK]
            last = first + len(rows) == len(tokens)
            piece = Piece(
                decoding.key, rows, first, decoding.pages, int(last), 0, sampling if last else None, Drafting(first)
            )
            result = await self._runner.run(Plan(0, (piece,)))
        decoding.take(piece, result, 0)


def _measure(controller: Pacing, pieces: Sequence[Piece], seconds: float) -> None:
    """Note the time of steps that show the lasting cost of drafts, as decode_svc/speculation/speculation.py does."""
    drafts = sum(piece.sampled - 1 for piece in pieces)
    drafting = [piece.drafting for piece in pieces if piece.drafting]
    proposed = sum(each.propose for each in drafting)
    if not any(each.unread for each in drafting) and (proposed > 0 if drafts else not drafting):
        controller.measure(len(pieces), drafts, seconds)


def _text(decoding: _Decoding) -> tuple[tuple[int, bytes], ...]:
    return tuple(zip(decoding.tokens[len(decoding.request.prompt) :], decoding.bits, strict=True))
