"""Base of the HTTP replies to requests that generate: frames while an answer is generated, or one whole body.

Step 8 of a request's life over HTTP. Those of the OpenAI API are gateway/dialects/openai/chat_reply.py and
gateway/dialects/openai/completion_reply.py."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Event
from gateway.answers.plain_path import SendText
from gateway.answers.usage import usage_of
from gateway.dialects.common.pieces import JsonPieces, in_thread
from gateway.dialects.common.sse import Frames, with_member
from gateway.dialects.described.answers import AnswerTimings, AnswerUsage
from gateway.dialects.openai.answer import (
    NUMBERED,
    Json,
    Scores,
    TokenNames,
    WholeChoice,
    answer_timings,
    answer_usage,
    fingerprint_of,
)
from gateway.dialects.openai.prompt_logprobs import prompt_logprobs
from gateway.dialects.openai.types import CommonRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt, noted_events
from gateway.validation.client_request import ClientRequest

Pairs = Sequence[tuple[ClientRequest, Answer]]
Made = TypeVar("Made")
MANY_LISTED = 1024  # likeliest tokens whose text takes a good part of a millisecond


class Reply(Protocol):
    request_id: str
    stream: bool

    def frames(self) -> AsyncGenerator[bytes, None]: ...

    async def whole(self) -> object: ...

    def cancel(self) -> None: ...


class BaseReply:
    prefix: str
    _frames: Frames
    _with_logprobs: bool

    def __init__(
        self, body: CommonRequest, pairs: Pairs, assets: Assets, *, created: int, receipt: OpenReceipt | None = None
    ) -> None:
        self.request_id = pairs[0][0].request_id
        self.stream = bool(body.stream)
        self._pairs = pairs
        self._answers = [answer for _, answer in pairs]
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._with_usage_so_far = body.stream_options is not None and bool(body.stream_options.continuous_usage_stats)
        self._with_ids = bool(body.return_token_ids)
        self._tokenizer = assets.tokenizer
        self._names: TokenNames = NUMBERED if body.return_tokens_as_token_ids else assets.tokenizer
        self._choices = body.n or 1
        self._id = f"{self.prefix}-{self.request_id}"
        self._created = created
        self._model = body.model or assets.name
        self._prompt_top = likeliest(body.prompt_logprobs, assets)
        self._receipt = receipt

    def shorten(self, sender: Callable[[bytes, bytes], SendText]) -> None:
        """Let plain tokens go straight to what `sender` makes of the bytes around them, those of `frames`."""
        if len(self._pairs) > 1 or self._with_logprobs or self._with_ids or self._with_usage_so_far or self._receipt:
            return
        self._answers[0].shorten(sender(*self._frames.around_text(0)))

    def cancel(self) -> None:
        for _, answer in self._pairs:
            answer.cancel()

    def events(self, number: int) -> AsyncGenerator[Event, None]:
        """The events of the answer to this prompt."""
        return noted_events(self._receipt, self._answers[number], number)

    async def last_frame(self, frames: Frames) -> bytes:
        """Usage and receipt, as far as the client wants them; else empty."""
        frame = frames.usage(self.usage(), self.timings()) if self._with_usage else b""
        if self._receipt is None:
            return frame
        frame = frame or frames.empty()
        for name, value in (await self._receipt.of_stream(frame)).items():
            frame = with_member(frame, name, value)
        return frame

    async def prompt_logprobs(self, answer: Answer, top: int) -> Any:
        """JsonPieces, which stand where a type wants a list."""
        assert answer.scores is not None, "the answer has waited for them"
        slices = prompt_logprobs(self._tokenizer, answer.scores, top)
        return JsonPieces.of_items([each async for each in in_thread(slices)])

    def usage(self) -> AnswerUsage:
        return answer_usage(usage_of(self._answers))

    def timings(self) -> AnswerTimings:
        return answer_timings(self._answers)

    def shown(self, frame: bytes) -> bytes:
        """The frame as the client wants it: with the usage so far, or as it is. The receipt notes it."""
        if self._with_usage_so_far:
            frame = with_member(frame, "usage", self.usage())
        return frame if self._receipt is None else self._receipt.sent(frame)

    def ids_of(self, event: Delta) -> Json:
        """Further members of a choice that this delta belongs to."""
        return {"token_ids": [token.token for token in event.tokens]} if self._with_ids and event.tokens else {}

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self._pairs[0][1].numerics)

    def common(self) -> Json:
        """The members of a whole answer that tell about all of its choices."""
        head: Json = {"created": self._created, "model": self._model}
        return head | {"usage": self.usage(), "timings": self.timings(), "system_fingerprint": self.fingerprint}


def likeliest(asked: int | None, assets: Assets) -> int | None:
    """How many likeliest tokens are listed at each position; None: none are wanted."""
    return assets.vocabulary if asked == -1 else asked


async def made(make: Callable[[], Made], event: Event) -> Made:
    """What `make` makes of an event: in a thread where it lists so many tokens that others would wait."""
    if isinstance(event, Delta) and sum(len(token.top_ids) for token in event.tokens) > MANY_LISTED:
        return await asyncio.to_thread(make)
    return make()


async def whole_choices(events: AsyncIterator[Event], scores: Callable[[], Scores | None]) -> list[WholeChoice[Scores]]:
    """`scores`: what collects the logprobs of a choice."""
    wholes: dict[int, WholeChoice[Scores]] = {}
    async for event in events:
        whole = wholes.get(event.index)
        if whole is None:
            whole = wholes[event.index] = WholeChoice(event.index, scores())
        await made(partial(whole.add, event), event)
    return [wholes[index] for index in sorted(wholes)]


async def numbered(events: AsyncIterator[Event], first: int) -> AsyncIterator[Event]:
    """The events of an answer; its choices count from `first`."""
    async for event in events:
        yield replace(event, index=first + event.index)
