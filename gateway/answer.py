"""The answer to a valid request: the tokens of its choices become text, stop strings and tool calls.

Step 8 of a request's life. Each token leaves once, together with its text. However an answer ends, all its choices
are cancelled."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.core import ChoiceRequest, Core, Timings, TokenStream
from gateway.text.stops import StopStrings
from gateway.text.tokenizer import Detokenizer, ModelTokenizer
from gateway.text.tool_calls import ParsedPiece, ToolCall, ToolCallReader
from gateway.turns import Turns
from gateway.validation import ValidRequest
from mesh.errors import BatonError, Cancelled, ClassUnavailable
from mesh.messages import End, Token


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice, and the text and tool calls that they complete."""

    index: int  # number of the choice
    tokens: tuple[Token, ...]
    text: str
    numerics: str  # numerics class of the last of these tokens
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice. STOP has a stop id, a stop string, or neither at the model's own end of sequence."""

    index: int
    reason: End
    stop_id: int | None = None
    stop_string: str | None = None
    called: bool = False  # the choice ends so that the client can run the tools that it called


Event = Delta | Finished
Item = TypeVar("Item")


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
        """Submit every choice at once; raises what the core raises. `streams`: those that are submitted already."""
        self._valid, self._request, self._tokenizer = valid, valid.request, tokenizer
        self._counts = {choice.sampling.choice: len(choice.emitted) for choice in valid.choices}
        self._counts |= {complete.index: len(complete.emitted) for complete in valid.complete}
        self._streams: dict[int, TokenStream] = {} if streams is None else streams
        try:
            for choice in valid.choices[len(self._streams) :]:
                self._streams[choice.sampling.choice] = core.submit(choice)
        except BatonError:
            self.cancel()
            raise

    @classmethod
    async def begin(cls, valid: ValidRequest, core: Core, tokenizer: ModelTokenizer, turns: Turns) -> "Answer":
        """Submit every choice; many long ones take time, so that is done in turns."""
        streams, clock = dict[int, TokenStream](), asyncio.get_running_loop().time
        turn_ends = clock() + TURN_SECONDS
        try:
            for choice in valid.choices:
                streams[choice.sampling.choice] = core.submit(choice)
                if clock() > turn_ends:
                    await turns.next()
                    turn_ends = clock() + TURN_SECONDS
        except BaseException:
            for stream in streams.values():
                stream.cancel()
            raise
        return cls(valid, core, tokenizer, streams=streams)

    @property
    def seed(self) -> int:
        return self._valid.seed

    @property
    def numerics(self) -> str:
        """Numerics class of the latest token; known after the first event."""
        classes = [stream.numerics for stream in self._streams.values()]
        return next(filter(None, classes), self._request.numerics)

    @property
    def timings(self) -> tuple[Timings, ...]:
        return tuple(stream.timings for stream in self._streams.values())

    @property
    def prompt_tokens(self) -> int:
        return len(self._request.prompt)

    @property
    def completion_tokens(self) -> int:
        """Tokens of all choices, those that the client brought along included."""
        return sum(self._counts.values())

    def cancel(self) -> None:
        for stream in self._streams.values():
            stream.cancel()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the deltas of every choice in order, and one Finished for each choice. Raises mesh.errors."""
        try:
            for complete in self._valid.complete:
                called = self._call_reader(complete.index, complete.emitted).count > 0
                yield self._finished(complete.index, complete.stop_id, called=called)
            streams = [self._choice(choice, self._streams[choice.sampling.choice]) for choice in self._valid.choices]
            async for event in merge(streams):
                yield event
        finally:
            self.cancel()

    async def _choice(self, choice: ChoiceRequest, stream: TokenStream) -> AsyncGenerator[Event, None]:
        request, index, count = self._request, choice.sampling.choice, len(choice.emitted)
        if count > choice.sampling.min_tokens and (string := self._stopped_before(choice.emitted)):
            stream.cancel(complete=True)
            yield Finished(index, End.STOP, stop_string=string)
            return
        detokenizer = Detokenizer(self._tokenizer, choice.prompt, choice.emitted, skip_special=request.skip_special)
        stops = StopStrings(request.stop, include=request.include_stop)
        calls = self._call_reader(index, choice.emitted)
        async for token in stream.events():
            _check_class(choice, stream)
            count += 1
            self._counts[index] = count
            text = "" if token.end is End.STOP else detokenizer.push(token.token)
            if token.end is not End.NONE:
                text += detokenizer.flush()
            parsed = calls.push(stops.push(token, text, active=count > choice.sampling.min_tokens))
            if parsed.piece.tokens:
                yield _delta(index, parsed, stream)
            has_call = request.one_call and calls.count > 0
            if token.end is End.NONE and stops.matched is None and not has_call:
                continue
            for rest in (calls.push(stops.flush()), calls.flush()):
                if rest.piece.tokens:
                    yield _delta(index, rest, stream)
            if token.end is End.NONE or stops.matched is not None:
                stream.cancel(complete=True)
                yield Finished(index, End.STOP, stop_string=stops.matched, called=has_call and stops.matched is None)
            else:
                yield self._finished(index, token.token if token.end is End.STOP else None, called=calls.count > 0)
            return
        raise Cancelled("the answer was cancelled")

    def _call_reader(self, index: int, emitted: tuple[int, ...]) -> ToolCallReader:
        before = self._tokenizer.decode(emitted) if self._request.tools and emitted else ""
        return ToolCallReader(self._request.tools, request_id=self._request.request_id, choice=index, before=before)

    def _stopped_before(self, emitted: tuple[int, ...]) -> str | None:
        """The stop string in the emitted text: the client has the whole choice and lacks only its Finished."""
        text = self._tokenizer.decode(emitted) if self._request.stop else ""
        return next((string for string in self._request.stop if string in text), None)

    def _finished(self, index: int, stop_id: int | None, *, called: bool) -> Finished:
        if stop_id is None:
            return Finished(index, End.LENGTH)
        if stop_id not in self._valid.eos_ids:
            return Finished(index, End.STOP, stop_id=stop_id)
        return Finished(index, End.STOP, called=called)


def _delta(index: int, parsed: ParsedPiece, stream: TokenStream) -> Delta:
    return Delta(index, parsed.piece.tokens, parsed.piece.text, stream.numerics, parsed.calls)


def _check_class(choice: ChoiceRequest, stream: TokenStream) -> None:
    """A continued choice keeps its numerics class unless the client allows a change."""
    if choice.numerics not in ("", stream.numerics) and not choice.allow_class_change:
        raise ClassUnavailable(
            f"the answer began in class {choice.numerics}; this gateway's workers are of class {stream.numerics}. "
            "Continue at a gateway with workers of the first class, or set allow_class_change"
        )


def merge(streams: Sequence[AsyncIterator[Item]]) -> AsyncIterator[Item]:
    """The items of all streams as they come; the first error ends them all. A single stream takes no detour."""
    return streams[0] if len(streams) == 1 else _merge(streams)


async def _merge(streams: Sequence[AsyncIterator[Item]]) -> AsyncIterator[Item]:
    # Bounded, so that a client that does not read holds back the streams themselves.
    queue: asyncio.Queue[tuple[Item | None, Exception | None]] = asyncio.Queue(2 * len(streams))

    async def pump(stream: AsyncIterator[Item]) -> None:
        try:
            async for event in stream:
                await queue.put((event, None))
            await queue.put((None, None))
        except Exception as error:
            await queue.put((None, error))

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        left = len(streams)
        while left:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
