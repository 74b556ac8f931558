"""The events of an answer, and what becomes of the events of several choices: merged as they come, or only the best.

Step 8 of a request's life."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.text.tool_calls import ToolCall
from mesh.messages.jobs import End, Token


@dataclass(frozen=True, slots=True)
class Delta:
    """New tokens of one choice, and the text and tool calls that they complete."""

    index: int  # number of the choice
    tokens: tuple[Token, ...]
    text: str
    numerics: str  # numerics class of the last of these tokens
    calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    offsets: tuple[int, ...] = ()  # characters of the choice before each token; empty without logprobs


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


async def best(events: AsyncIterator[Event], count: int) -> AsyncGenerator[Event, None]:
    """The events of the `count` choices with the highest mean logprob, best first and numbered from 0, once all choices
    have ended. Of equal ones the first is better."""
    kept: dict[int, list[Event]] = {}
    async for event in events:
        kept.setdefault(event.index, []).append(event)

    def mean_logprob(index: int) -> float:
        tokens = [token.logprob for event in kept[index] if isinstance(event, Delta) for token in event.tokens]
        return sum(tokens) / max(1, len(tokens))

    for number, index in enumerate(sorted(sorted(kept), key=mean_logprob, reverse=True)[:count]):
        for event in kept[index]:
            yield replace(event, index=number)
            await asyncio.sleep(0)  # what is kept may be much: others have their turn


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
