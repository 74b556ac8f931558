"""Beam search: the answers with the highest scores, found by keeping the best beginnings of an answer at each length.

Step 8 of a request's life. Each beam goes on as a request of one token whose prompt is the text so far. The prefix
cache has the full pages of that text, which beams share, so a beam alone holds only its last page. All the rest, deaths
of workers included, is that of ordinary requests. The rules are those of transformers' `num_beams`: a score is the sum
of logprobs over the length to the power of `length_penalty`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from gateway.core.interface import ChoiceRequest, Core, TakeToken, Timings, TokenStream
from gateway.validation.client_request import BeamOptions
from mesh.errors import Cancelled
from mesh.messages.jobs import End, Token


@dataclass(frozen=True, slots=True)
class Beam:
    """The beginning of an answer, or a whole one."""

    tokens: tuple[Token, ...] = ()
    score: float = 0.0  # sum of logprobs; of a whole answer over its length

    def longer(self, step: Token, token: int, logprob: float) -> "Beam":
        """With another token, which `step` lists."""
        added = replace(step, position=len(self.tokens), token=token, logprob=logprob)
        return Beam((*self.tokens, added), self.score + logprob)


class BeamSearch:
    def __init__(self, core: Core, choice: ChoiceRequest, options: BeamOptions) -> None:
        """`choice`: the request that all answers are of."""
        self._core, self._choice, self._options = core, choice, options
        self._ends = frozenset(choice.sampling.stop_ids)
        self._streams = dict[int, TokenStream]()  # the steps that run, by their identities
        self._clock = asyncio.get_running_loop().time
        self._began, self._ended = self._clock(), 0.0
        self.numerics, self.steps, self.cached_tokens, self.first_token_seconds = "", 0, 0, 0.0
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(_seen)

    async def answers(self) -> list[Beam]:
        """Wait for the best answers, the best one first. Raises mesh.errors only."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._task.cancelled():
                raise Cancelled("the client went away") from None
            raise

    def cancel(self) -> None:
        self._task.cancel()
        for stream in self._streams.values():
            stream.cancel()

    @property
    def seconds(self) -> float:
        return (self._ended or self._clock()) - self._began

    async def _run(self) -> list[Beam]:
        width, penalty = self._options.width, self._options.length_penalty
        early = self._options.early_stopping if width > 1 else True  # a single beam ends where a greedy answer ends
        running, whole, most = [Beam()], list[Beam](), self._choice.sampling.max_tokens
        for length in range(1, most + 1):
            ranked = await self._ranked(running)
            ended = [beam for beam in ranked[:width] if length == most or self._is_whole(beam)]
            if not (early is True and len(whole) == width):
                whole += [replace(beam, score=beam.score / length**penalty) for beam in ended]
                whole = sorted(whole, key=lambda beam: -beam.score)[:width]
            running = [beam for beam in ranked if not self._is_whole(beam)][:width]
            counted = most if early == "never" and penalty > 0 else length
            best = running[0].score / counted**penalty if running else float("-inf")
            if len(whole) == width and (early is True or best <= whole[-1].score):
                break
        self._ended = self._clock()
        return whole

    def ends_with(self, token: Token) -> bool:
        return token.token in self._ends

    def _is_whole(self, beam: Beam) -> bool:
        return self.ends_with(beam.tokens[-1])

    async def _ranked(self, running: list[Beam]) -> list[Beam]:
        """The likeliest continuations of all beams, the best one first."""
        kept = max(2, 1 + len(self._ends)) * self._options.width
        steps = await asyncio.gather(*(self._step(beam) for beam in running))
        longer = [
            beam.longer(step, token, logprob)
            for beam, step in zip(running, steps, strict=True)
            for token, logprob in zip(step.top_ids, step.top_logprobs, strict=True)
        ]
        return sorted(longer, key=lambda beam: -beam.score)[:kept]

    async def _step(self, beam: Beam) -> Token:
        """The next token of a beam as the model lists it."""
        choice, length = self._choice, len(beam.tokens)
        sampling = replace(
            choice.sampling,
            max_tokens=length + 1,
            min_tokens=0,
            stop_ids=(),
            top_logprobs=self._options.width + len(self._ends),
        )
        left = choice.deadline_seconds
        stream = self._core.submit(
            replace(
                choice,
                emitted=tuple(token.token for token in beam.tokens),
                sampling=sampling,
                deadline_seconds=None if left is None else left - (self._clock() - self._began),
                numerics=choice.numerics if choice.allow_class_change else self.numerics or choice.numerics,
                least_tokens=length + 1,
                choices=self._options.width,
            )
        )
        self._streams[id(stream)] = stream
        try:
            async for token in stream.events():
                if not self.steps:
                    self.cached_tokens, self.first_token_seconds = stream.timings.cached_tokens, self.seconds
                self.numerics, self.steps = stream.numerics, self.steps + 1
                return token
        finally:
            del self._streams[id(stream)]
        raise Cancelled("the answer was cancelled")


class BeamStream:
    """One of the answers of a search, as the core's TokenStream."""

    def __init__(self, search: BeamSearch, rank: int, top_logprobs: int | None) -> None:
        """`rank`: 0 for the best answer."""
        self._search, self._rank, self._top = search, rank, top_logprobs
        self._taken = 0

    async def events(self) -> AsyncIterator[Token]:
        answers = await self._search.answers()
        beam = answers[self._rank]
        for token in beam.tokens:
            self._taken += 1
            last = token is beam.tokens[-1]
            end = End.NONE if not last else End.STOP if self._search.ends_with(token) else End.LENGTH
            count = self._top or 0
            yield replace(token, top_ids=token.top_ids[:count], top_logprobs=token.top_logprobs[:count], end=end)

    def shorten(self, take: TakeToken) -> None:
        """Every token goes to the reader."""

    @property
    def numerics(self) -> str:
        return self._search.numerics

    @property
    def timings(self) -> Timings:
        search = self._search
        first = search.first_token_seconds
        return Timings(
            queue_seconds=None,
            prefill_seconds=None,
            first_token_seconds=first,
            handoff_seconds=0.0,
            decode_seconds=max(0.0, search.seconds - first),
            total_seconds=search.seconds,
            attempts=search.steps,
            cached_tokens=search.cached_tokens,
            drafted_tokens=0,
            accepted_tokens=0,
            decode_steps=max(0, self._taken - 1),
        )

    def cancel(self, *, complete: bool = False) -> None:
        """An answer that its reader has whole leaves the others to theirs."""
        if not complete:
            self._search.cancel()


def beam_streams(core: Core, choices: tuple[ChoiceRequest, ...], options: BeamOptions) -> dict[int, TokenStream]:
    """A stream for each answer that the client gets, by the number of its choice."""
    search = BeamSearch(core, choices[0], options)
    listed = options.top_logprobs
    return {choice.sampling.choice: BeamStream(search, rank, listed) for rank, choice in enumerate(choices)}


def _seen(task: "asyncio.Task[list[Beam]]") -> None:
    """A failure that no reader waits for is no defect."""
    if not task.cancelled():
        task.exception()
