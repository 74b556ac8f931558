"""An accepted request while it is answered: tokens of all choices become text, stop strings end them, n become one.

Step 8 of a request's life. Each token leaves once, with its text; whatever way an answer ends, nothing behind it is
left running."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gateway.calls import Call, CallReader, Read
from gateway.core import ChoiceRequest, Core, Handle
from gateway.stops import StopStrings
from gateway.tokenizer import Detokenizer, ModelTokenizer
from gateway.validation import ValidRequest
from mesh.errors import BatonError, Cancelled, ClassUnavailable
from mesh.messages import End, Token

# What a handle's timings say in seconds; of n choices the slowest counts.
TIMED = (
    "queue_seconds",
    "prefill_seconds",
    "first_token_seconds",
    "handoff_seconds",
    "decode_seconds",
    "total_seconds",
)


@dataclass(frozen=True, slots=True)
class Delta:
    index: int
    tokens: tuple[Token, ...]
    text: str
    numerics: str  # the class that the last of them came from
    calls: tuple[Call, ...] = ()  # of tools, completed by these tokens


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of one choice. LENGTH, or STOP by an id, by a string, or (neither) by the model's own end."""

    index: int
    reason: End
    stop_id: int | None = None
    stop_string: str | None = None
    called: bool = False  # it stopped to let the client run tools


Event = Delta | Finished
Item = TypeVar("Item")


class Answer:
    """Submits every choice at once; errors of the submission are the constructor's."""

    def __init__(self, accepted: ValidRequest, core: Core, tokens: ModelTokenizer) -> None:
        self._accepted = accepted
        self._tokens = tokens
        self._emitted = {spec.sampling.choice: len(spec.emitted) for spec in accepted.specs}
        self._emitted |= {done.index: len(done.emitted) for done in accepted.complete}
        self._handles: dict[int, Handle] = {}
        try:
            for spec in accepted.specs:
                self._handles[spec.sampling.choice] = core.submit(spec)
        except BatonError:
            self.cancel()
            raise

    @property
    def seed(self) -> int:
        return self._accepted.seed

    @property
    def numerics(self) -> str:
        """The class of the latest token; known once there was an event."""
        classes = [handle.numerics for handle in self._handles.values()]
        return next(filter(None, classes), self._accepted.asked.numerics)

    @property
    def handles(self) -> tuple[Handle, ...]:
        return tuple(self._handles.values())

    @property
    def completion_tokens(self) -> int:
        """Of all choices, those that the client brought along included."""
        return sum(self._emitted.values())

    @property
    def drafted_tokens(self) -> int:
        return sum(handle.timings.drafted_tokens for handle in self.handles)

    @property
    def accepted_tokens(self) -> int:
        return sum(handle.timings.accepted_tokens for handle in self.handles)

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, which all choices share."""
        return max((handle.timings.cached_tokens for handle in self.handles), default=0)

    def cancel(self) -> None:
        for handle in self._handles.values():
            handle.cancel()

    async def events(self) -> AsyncGenerator[Event, None]:
        """Deltas of every choice in its order, and one Finished for each. Raises mesh.errors."""
        try:
            for done in self._accepted.complete:
                called = self._reader(done.index, done.emitted).count > 0
                yield self._end(done.index, done.stop_id, called=called)
            streams = [self._choice(spec, self._handles[spec.sampling.choice]) for spec in self._accepted.specs]
            async for event in merge(streams):
                yield event
        finally:
            self.cancel()

    async def _choice(self, spec: ChoiceRequest, handle: Handle) -> AsyncGenerator[Event, None]:
        asked, index = self._accepted.asked, spec.sampling.choice
        detokenizer = Detokenizer(self._tokens, spec.prompt, spec.emitted, skip_special=asked.skip_special)
        stops = StopStrings(asked.stop, include=asked.include_stop)
        calls = self._reader(index, spec.emitted)
        count = len(spec.emitted)
        if count > spec.sampling.min_tokens and (string := self._stopped_before(spec.emitted)):
            handle.cancel()
            yield Finished(index, End.STOP, stop_string=string)
            return
        async for token in handle.events():
            self._check_class(spec, handle)
            count += 1
            self._emitted[index] = count
            text = "" if token.end is End.STOP else detokenizer.push(token.token)
            if token.end is not End.NONE:
                text += detokenizer.flush()
            read = calls.push(stops.push(token, text, active=count > spec.sampling.min_tokens))
            if read.piece.tokens:
                yield _delta(index, read, handle)
            enough = asked.one_call and calls.count > 0
            if token.end is End.NONE and stops.matched is None and not enough:
                continue
            for rest in (calls.push(stops.flush()), calls.flush()):
                if rest.piece.tokens:
                    yield _delta(index, rest, handle)
            if token.end is End.NONE or stops.matched is not None:
                handle.cancel()
                yield Finished(index, End.STOP, stop_string=stops.matched, called=enough and stops.matched is None)
            else:
                yield self._end(index, token.token if token.end is End.STOP else None, called=calls.count > 0)
            return
        raise Cancelled("the answer was cancelled")

    def _reader(self, index: int, emitted: tuple[int, ...]) -> CallReader:
        asked = self._accepted.asked
        before = self._tokens.decode(emitted) if asked.tools and emitted else ""
        return CallReader(asked.tools, request_id=asked.request_id, choice=index, before=before)

    def _stopped_before(self, emitted: tuple[int, ...]) -> str | None:
        """The client has all of an answer that a stop string ended, only the news of its end got lost."""
        text = self._tokens.decode(emitted) if self._accepted.asked.stop else ""
        return next((string for string in self._accepted.asked.stop if string in text), None)

    def _end(self, index: int, stop_id: int | None, *, called: bool) -> Finished:
        if stop_id is None:
            return Finished(index, End.LENGTH)
        if stop_id not in self._accepted.eos_ids:
            return Finished(index, End.STOP, stop_id=stop_id)
        return Finished(index, End.STOP, called=called)

    def _check_class(self, spec: ChoiceRequest, handle: Handle) -> None:
        """What is continued here must not change its class unless the client allows it."""
        if spec.numerics not in ("", handle.numerics) and not spec.allow_class_change:
            raise ClassUnavailable(
                f"the answer began in class {spec.numerics}; here it would go on in {handle.numerics}. "
                "Continue at a gateway of that class, or set allow_class_change"
            )


def _delta(index: int, read: Read, handle: Handle) -> Delta:
    return Delta(index, read.piece.tokens, read.piece.text, handle.numerics, read.calls)


async def merge(streams: Sequence[AsyncIterator[Item]]) -> AsyncIterator[Item]:
    """Whatever comes first; the first error ends all. A single stream takes no detour."""
    if len(streams) == 1:
        async for event in streams[0]:
            yield event
        return
    queue: asyncio.Queue[tuple[Item | None, Exception | None]] = asyncio.Queue()

    async def pump(stream: AsyncIterator[Item]) -> None:
        try:
            async for event in stream:
                queue.put_nowait((event, None))
            queue.put_nowait((None, None))
        except Exception as error:
            queue.put_nowait((None, error))

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
