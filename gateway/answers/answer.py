"""The answer to a valid request: the tokens of its choices become text, stop strings and tool calls.

Step 8 of a request's life. Each token leaves once, together with its text. However an answer ends, all its choices
are cancelled."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from gateway.answers.beams import beam_streams
from gateway.answers.events import Delta, Event, Finished, best, merge
from gateway.answers.plain_path import PlainPath, SendText
from gateway.core.interface import ChoiceRequest, Core, PromptScores, Timings, TokenStream, check_class
from gateway.fairness.loop_turns import Turns
from gateway.text.detokenizer import AnswerText
from gateway.text.pieces import REPLACEMENT
from gateway.text.places import TokenPlaces
from gateway.text.stops import StopStrings
from gateway.text.tokenizer import ModelTokenizer
from gateway.text.tool_calls import AnswerReader, ParsedPiece
from gateway.validation.validate import CompleteChoice, ValidRequest
from mesh.errors import BatonError, Cancelled
from mesh.messages.jobs import End

TURN_SECONDS = 0.002  # for which choices are submitted before others have a turn


class Answer:
    def __init__(
        self,
        valid: ValidRequest,
        core: Core,
        tokenizer: ModelTokenizer,
        *,
        streams: dict[int, TokenStream] | None = None,
    ) -> None:
        """Submit every choice at once, or first what computes the prompt's logprobs; raises what the core raises.
        `streams`: those of choices that are submitted already, the first ones."""
        self._valid = valid
        self._request = valid.request
        self._tokenizer = tokenizer
        self._counts = {choice.sampling.choice: len(choice.emitted) for choice in valid.choices}
        self._counts |= {complete.index: len(complete.emitted) for complete in valid.complete}
        self._core, self._cancelled = core, False
        self._streams: dict[int, TokenStream] = {} if streams is None else streams
        self._readers: dict[int, AnswerReader] = {}
        self._send: SendText | None = None  # takes the text of plain tokens
        skip, in_form = self._request.skip_special, bool(self._request.grammar)
        self._text = AnswerText(tokenizer, self._request.reading.marks, skip_special=skip, in_form=in_form)
        self._scoring = None if valid.scoring is None else core.examine(valid.scoring)
        self.scores: PromptScores | None = None  # the prompt's logprobs, if they are wanted; there before any event
        if self._scoring is None:
            self._submit(valid.choices[len(self._streams) :])

    @classmethod
    async def begin(cls, valid: ValidRequest, core: Core, tokenizer: ModelTokenizer, turns: Turns) -> "Answer":
        """The same; many long choices take time, so they are submitted in turns."""
        streams, clock = dict[int, TokenStream](), asyncio.get_running_loop().time
        if valid.request.beams is not None:
            return cls(valid, core, tokenizer, streams=beam_streams(core, valid.choices, valid.request.beams))
        turn_ends = clock() + TURN_SECONDS
        try:
            for choice in valid.choices if valid.scoring is None else ():
                streams[choice.sampling.choice] = core.submit(choice)
                if clock() > turn_ends:
                    await turns.next()
                    turn_ends = clock() + TURN_SECONDS
        except BaseException:
            for stream in streams.values():
                stream.cancel()
            raise
        return cls(valid, core, tokenizer, streams=streams)

    def _submit(self, choices: Sequence[ChoiceRequest]) -> None:
        try:
            for choice in choices:
                self._streams[choice.sampling.choice] = self._core.submit(choice)
        except BatonError:
            self.cancel()
            raise

    async def _score(self) -> None:
        """Wait for the prompt's logprobs, then submit the choices, in the same class: they find the prompt's pages in
        the prefix cache."""
        if self._scoring is not None and self.scores is None:
            self.scores = await self._scoring.scores()
            if self._cancelled:
                raise Cancelled("the client went away")
            numerics = "" if self._request.allow_class_change else self._scoring.numerics
            self._submit([replace(choice, numerics=choice.numerics or numerics) for choice in self._valid.choices])

    @property
    def seed(self) -> int:
        return self._valid.seed

    @property
    def numerics(self) -> str:
        """Numerics class of the latest token; known after the first event."""
        classes = [stream.numerics for stream in self._streams.values()]
        scored = self._scoring.numerics if self._scoring is not None else ""
        return next(filter(None, classes), scored or self._request.numerics)

    @property
    def timings(self) -> tuple[Timings, ...]:
        return tuple(stream.timings for stream in self._streams.values())

    @property
    def prompt_tokens(self) -> int:
        return len(self._request.prompt)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens whose pages a prefix cache held. Choices share their prompt; logprobs of it need all of it
        computed."""
        if self._scoring is not None:
            return self._scoring.cached_tokens
        return max((timings.cached_tokens for timings in self.timings), default=0)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices, those that the client brought along included."""
        return sum(self._counts.values())

    @property
    def reasoning_tokens(self) -> int:
        """Number of completion tokens that are reasoning."""
        return sum(reader.reasoning_tokens for reader in self._readers.values())

    def cancel(self) -> None:
        self._cancelled = True
        if self._scoring is not None:
            self._scoring.cancel()
        for stream in self._streams.values():
            stream.cancel()

    def shorten(self, send: SendText) -> None:
        """Behind the first text, plain tokens of a single choice go to `send` instead
        (gateway/answers/plain_path.py)."""
        self._send = send if len(self._counts) == 1 else None

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the deltas of every choice in order, and one Finished for each choice. Raises mesh.errors."""
        request, events = self._request, self._events()
        if request.best_of is not None and request.best_of > (request.n or 1):
            events = best(events, request.n or 1)
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        finally:
            self.cancel()

    async def _events(self) -> AsyncGenerator[Event, None]:
        await self._score()
        for complete in self._valid.complete:
            yield self._brought(complete)
        streams = [self._choice(choice, self._streams[choice.sampling.choice]) for choice in self._valid.choices]
        async for event in merge(streams):
            yield event

    async def _choice(self, choice: ChoiceRequest, stream: TokenStream) -> AsyncGenerator[Event, None]:
        request = self._request
        index = choice.sampling.choice
        send = self._send
        if string := self._stopped_before(choice.emitted, choice.sampling.min_tokens):
            stream.cancel(complete=True)
            yield Finished(index, End.STOP, stop_string=string)
            return
        detokenizer = self._text.detokenizer(choice.prompt, choice.emitted)
        stops = StopStrings(request.stop, include=request.include_stop)
        reader = self._reader(index, choice.emitted)
        places = TokenPlaces(self._tokenizer if request.top_logprobs is not None else None)
        one_call = not request.reading.use.parallel
        async for token in stream.events():
            check_class(choice, stream)
            self._counts[index] += 1
            text = "" if token.end is End.STOP else detokenizer.push(token.token)
            if token.end is not End.NONE:
                text += detokenizer.flush()
            places.add(token, text)
            parsed = reader.push(stops.push(token, text, active=self._counts[index] > choice.sampling.min_tokens))
            if parsed.piece.tokens:
                yield _delta(index, parsed, stream, places)
                if send is not None and parsed.piece.text:  # only an event with text is sure to have begun the stream
                    stream.shorten(PlainPath(self._counts, index, send, detokenizer, stops, reader).take)
                    send = None
            has_call = one_call and reader.count > 0
            if token.end is End.NONE and stops.matched is None and not has_call:
                continue
            for rest in (reader.push(stops.flush()), reader.flush()):
                if rest.piece.tokens:
                    yield _delta(index, rest, stream, places)
            if token.end is End.NONE or stops.matched is not None:
                stream.cancel(complete=True)
                yield Finished(index, End.STOP, stop_string=stops.matched, called=has_call and stops.matched is None)
            else:
                yield self._finished(index, token.token if token.end is End.STOP else None, called=reader.called)
            return
        raise Cancelled("the answer was cancelled")

    def _reader(self, index: int, emitted: tuple[int, ...]) -> AnswerReader:
        reading = self._request.reading
        before = self._text.decode(emitted) if emitted and reading.has_parts else ""
        reader = AnswerReader(reading, request_id=self._request.request_id, choice=index, before=before)
        if before and reading.reasoning is not None:
            end = reader.reasoning_end
            # Tokens of the emitted reasoning: the fewest whose text reaches its end.
            reader.reasoning_tokens = bisect_left(
                range(len(emitted)),
                len(before) if end is None else end,
                key=lambda n: len(self._text.decode(emitted[:n])),
            )
        self._readers[index] = reader
        return reader

    def _brought(self, complete: CompleteChoice) -> Finished:
        """The end of a choice that the client brought along complete."""
        called = self._reader(complete.index, complete.emitted).called
        string = None if complete.stop_id is not None else self._stopped_before(complete.emitted, complete.min_tokens)
        if string is not None:
            return Finished(complete.index, End.STOP, stop_string=string)
        return self._finished(complete.index, complete.stop_id, called=called)

    def _stopped_before(self, emitted: tuple[int, ...], min_tokens: int) -> str | None:
        """The stop string in the emitted text behind the first min_tokens: the client has the whole choice and lacks
        only its Finished."""
        if not self._request.stop or len(emitted) <= min_tokens:
            return None
        early = self._text.decode(emitted[:min_tokens]).rstrip(REPLACEMENT)
        text = self._text.decode(emitted)[len(early) :]
        return next((string for string in self._request.stop if string in text), None)

    def _finished(self, index: int, stop_id: int | None, *, called: bool) -> Finished:
        if stop_id is None:
            return Finished(index, End.LENGTH)
        if stop_id not in self._valid.eos_ids:
            return Finished(index, End.STOP, stop_id=stop_id)
        return Finished(index, End.STOP, called=called)


def _delta(index: int, parsed: ParsedPiece, stream: TokenStream, places: TokenPlaces) -> Delta:
    tokens = parsed.piece.tokens
    return Delta(index, tokens, parsed.piece.text, stream.numerics, parsed.calls, parsed.reasoning, places.of(tokens))
