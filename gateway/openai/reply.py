"""The HTTP reply to one valid request: frames while it is generated, or one whole body.

Step 8 of a request's life over HTTP. A completion request with several prompts has an answer for each; their choices
share one numbering."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.answer import Answer, Delta, Event, merge
from gateway.openai.answer import (
    Json,
    WholeChoice,
    chat_choice,
    chat_logprobs,
    completion_choice,
    completion_logprobs,
    fingerprint_of,
    finish_fields,
    tool_call,
    usage_fields,
)
from gateway.openai.sse import ChatFrames, CompletionFrames
from gateway.openai.types import ChatRequest, CommonRequest, CompletionRequest
from gateway.text.assets import Assets
from gateway.usage import timings_of, usage_of
from gateway.validation import ClientRequest

Pairs = Sequence[tuple[ClientRequest, Answer]]


class Reply(Protocol):
    request_id: str
    stream: bool

    def frames(self) -> AsyncGenerator[bytes, None]: ...

    async def whole(self) -> Json: ...

    def cancel(self) -> None: ...


class _BaseReply:
    prefix: str

    def __init__(self, body: CommonRequest, pairs: Pairs, assets: Assets, *, created: int) -> None:
        self.request_id = pairs[0][0].request_id
        self.stream = bool(body.stream)
        self._pairs = pairs
        self._answers = [answer for _, answer in pairs]
        self._tokenizer = assets.tokenizer
        self._with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        self._id = f"{self.prefix}-{self.request_id}"
        self._created = created
        self._model = body.model or assets.name

    def cancel(self) -> None:
        for _, answer in self._pairs:
            answer.cancel()

    def usage(self) -> Json:
        return usage_fields(usage_of(self._answers))

    def timings(self) -> Json:
        return dict(timings_of(self._answers))

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self._pairs[0][1].numerics)

    def answer(self, kind: str, choices: list[Json]) -> Json:
        head: Json = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        rest = {"usage": self.usage(), "timings": self.timings(), "system_fingerprint": self.fingerprint}
        return head | {"choices": choices} | rest


class ChatReply(_BaseReply):
    prefix = "chatcmpl"

    def __init__(self, body: ChatRequest, pairs: Pairs, assets: Assets, *, created: int) -> None:
        super().__init__(body, pairs, assets, created=created)
        ((request, self._answer),) = pairs
        self._with_logprobs = request.top_logprobs is not None

    async def frames(self) -> AsyncGenerator[bytes, None]:
        frames = ChatFrames(id=self._id, kind="chat.completion.chunk", created=self._created, model=self._model)
        begun = set[int]()  # choices whose first frame is sent
        async for event in self._answer.events():
            if event.index not in begun:
                begun.add(event.index)
                yield frames.role(event.index)
            if isinstance(event, Delta):
                logprobs = chat_logprobs(self._tokenizer, event.tokens) if self._with_logprobs else None
                if event.text or logprobs is not None:
                    yield frames.text(event.index, event.text, logprobs)
                if event.calls:
                    calls: list[Json] = [{"index": call.index} | tool_call(call) for call in event.calls]
                    yield frames.calls(event.index, calls)
            else:
                yield frames.finish(event.index, finish_fields(event), self.fingerprint)
        if self._with_usage:
            yield frames.usage(self.usage(), self.timings())

    async def whole(self) -> Json:
        wholes = await _collect(self._answer)
        choices = [chat_choice(whole, self._tokenizer, self._with_logprobs) for whole in wholes]
        return self.answer("chat.completion", choices)


class CompletionReply(_BaseReply):
    prefix = "cmpl"

    def __init__(self, body: CompletionRequest, pairs: Pairs, assets: Assets, *, created: int) -> None:
        super().__init__(body, pairs, assets, created=created)
        self._choices = body.n or 1
        self._with_logprobs = body.logprobs is not None
        self._echo = [assets.tokenizer.decode(request.prompt) if body.echo else "" for request, _ in pairs]

    async def frames(self) -> AsyncGenerator[bytes, None]:
        frames = CompletionFrames(id=self._id, kind="text_completion", created=self._created, model=self._model)
        offsets: dict[int, int] = {}  # characters sent so far, by choice
        first, *others = self._answers
        more = [_numbered(answer, number * self._choices) for number, answer in enumerate(others, 1)]
        async for event in merge([first.events(), *more]):
            index = event.index
            if index not in offsets:
                echo = self._echo[index // self._choices]
                offsets[index] = len(echo)
                if echo:
                    yield frames.text(index, echo, None)
            if isinstance(event, Delta):
                logprobs = None
                if self._with_logprobs:
                    logprobs = completion_logprobs(self._tokenizer, event.tokens, offsets[index])
                offsets[index] += len(event.text)
                if event.text or logprobs is not None:
                    yield frames.text(index, event.text, logprobs)
            else:
                yield frames.finish(index, finish_fields(event), self.fingerprint)
        if self._with_usage:
            yield frames.usage(self.usage(), self.timings())

    async def whole(self) -> Json:
        collected = await asyncio.gather(*(_collect(answer) for _, answer in self._pairs))
        choices = [
            completion_choice(whole, self._tokenizer, self._with_logprobs, echo, number * self._choices + whole.index)
            for number, (wholes, echo) in enumerate(zip(collected, self._echo, strict=True))
            for whole in wholes
        ]
        return self.answer("text_completion", choices)


async def _collect(answer: Answer) -> list[WholeChoice]:
    wholes: dict[int, WholeChoice] = {}
    async for event in answer.events():
        wholes.setdefault(event.index, WholeChoice(event.index)).add(event)
    return [wholes[index] for index in sorted(wholes)]


async def _numbered(answer: Answer, first: int) -> AsyncIterator[Event]:
    """The answer's events; its choices count from `first`."""
    async for event in answer.events():
        yield replace(event, index=first + event.index)
