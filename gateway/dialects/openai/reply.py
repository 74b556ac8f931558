"""The HTTP reply to one valid request: frames while it is generated, or one whole body.

Step 8 of a request's life over HTTP. A completion request with several prompts has an answer for each; their choices
share one numbering."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Event, merge
from gateway.answers.plain_path import SendText
from gateway.answers.usage import usage_of
from gateway.dialects.common.pieces import JsonPieces, in_thread
from gateway.dialects.common.sse import ChatFrames, CompletionFrames, Frames, with_member
from gateway.dialects.described.answers import (
    AnswerTimings,
    AnswerUsage,
    ChatAnswer,
    CompletionAnswer,
    CompletionAnswerChoice,
)
from gateway.dialects.openai.answer import (
    NUMBERED,
    ChatScores,
    CompletionScores,
    Json,
    Scores,
    TokenNames,
    WholeChoice,
    answer_timings,
    answer_usage,
    chat_choice,
    chat_logprobs,
    completion_choice,
    completion_logprobs,
    fingerprint_of,
    finish_fields,
    reasoning_fields,
    tool_pieces,
)
from gateway.dialects.openai.prompt_logprobs import EchoedSlice, echoed_slices, prompt_logprobs
from gateway.dialects.openai.signed import signed
from gateway.dialects.openai.types import ChatRequest, CommonRequest, CompletionRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt, noted_events
from gateway.validation.client_request import ClientRequest

Pairs = Sequence[tuple[ClientRequest, Answer]]


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
        self._prompt_top = body.prompt_logprobs
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


class ChatReply(BaseReply):
    prefix = "chatcmpl"
    _frames: ChatFrames

    def __init__(
        self, body: ChatRequest, pairs: Pairs, assets: Assets, *, created: int, receipt: OpenReceipt | None = None
    ) -> None:
        super().__init__(body, pairs, assets, created=created, receipt=receipt)
        ((self._request, self._answer),) = pairs
        self._frames = ChatFrames(id=self._id, kind="chat.completion.chunk", created=created, model=self._model)
        self._with_logprobs = self._request.top_logprobs is not None
        self._with_reasoning = body.include_reasoning is not False

    async def frames(self) -> AsyncGenerator[bytes, None]:
        frames, begun = self._frames, set[int]()  # choices whose first frame is sent
        async for event in self.events(0):
            if event.index not in begun:
                begun.add(event.index)
                role = frames.role(event.index)
                if self._with_ids and len(begun) == 1:
                    role = with_member(role, "prompt_token_ids", self._request.prompt)
                yield self.shown(role)
            if isinstance(event, Delta):
                logprobs = chat_logprobs(self._names, event.tokens) if self._with_logprobs else None
                also = self.ids_of(event)
                if event.reasoning and self._with_reasoning:
                    yield self.shown(frames.delta(event.index, reasoning_fields(event.reasoning)))
                if event.text or logprobs is not None or also:
                    yield self.shown(frames.text(event.index, event.text, logprobs, also))
                if event.calls:
                    yield self.shown(frames.delta(event.index, {"tool_calls": tool_pieces(event.calls)}))
            else:
                yield self.shown(frames.finish(event.index, finish_fields(event), self.fingerprint))
        if last := await self.last_frame(frames):
            yield last

    def _scores(self) -> ChatScores | None:
        return ChatScores(self._names) if self._with_logprobs else None

    async def whole(self) -> ChatAnswer:
        wholes = await _collect(self.events(0), self._scores)
        choices = [chat_choice(whole, self._with_reasoning) for whole in wholes]
        answer = ChatAnswer(id=self._id, object="chat.completion", choices=choices, **self.common())
        if self._prompt_top is not None:
            answer.prompt_logprobs = await self.prompt_logprobs(self._answer, self._prompt_top)
        if self._with_ids:
            answer.prompt_token_ids = self._request.prompt
            for choice, whole in zip(choices, wholes, strict=True):
                choice.token_ids = whole.token_ids
        return await signed(self._receipt, answer)


class CompletionReply(BaseReply):
    prefix = "cmpl"
    _frames: CompletionFrames

    def __init__(
        self, body: CompletionRequest, pairs: Pairs, assets: Assets, *, created: int, receipt: OpenReceipt | None = None
    ) -> None:
        super().__init__(body, pairs, assets, created=created, receipt=receipt)
        self._frames = CompletionFrames(id=self._id, kind="text_completion", created=created, model=self._model)
        self._with_logprobs = body.logprobs is not None
        self._echo = [assets.tokenizer.decode(request.prompt) if body.echo else "" for request, _ in pairs]
        self._skip_special = body.skip_special_tokens is not False
        self._echo_top = body.logprobs if body.echo else None  # logprobs of the prompts too

    async def frames(self) -> AsyncGenerator[bytes, None]:
        frames = self._frames
        bases: dict[int, int] = {}  # characters of the echoed prompt, by choice
        begun = set[int]()  # prompts whose token ids were sent
        streams = [numbered(self.events(number), number * self._choices) for number in range(len(self._pairs))]
        async for event in merge(streams):
            index = event.index
            if index not in bases:
                number, bases[index] = index // self._choices, 0
                if self._echo_top is None and (echo := self._echo[number]):
                    bases[index] = len(echo)
                    yield self.shown(frames.text(index, echo, None))
                async for each in self._echoed(number):
                    bases[index] += len(each.text)
                    lists = {name: msgspec.Raw(b"[%b]" % items) for name, items in each.items.items()}
                    yield self.shown(frames.text(index, each.text, lists))
            if isinstance(event, Delta):
                logprobs = None
                if self._with_logprobs:
                    logprobs = completion_logprobs(
                        self._names, event.tokens, [bases[index] + offset for offset in event.offsets]
                    )
                also = self.ids_of(event)
                if also and index // self._choices not in begun:
                    also |= {"prompt_token_ids": self._pairs[index // self._choices][0].prompt}
                    begun.add(index // self._choices)
                if event.text or logprobs is not None or also:
                    yield self.shown(frames.text(index, event.text, logprobs, also))
            else:
                yield self.shown(frames.finish(index, finish_fields(event), self.fingerprint))
        if last := await self.last_frame(frames):
            yield last

    def _scores(self) -> CompletionScores | None:
        return CompletionScores(self._names) if self._with_logprobs else None

    async def whole(self) -> CompletionAnswer:
        collected = await asyncio.gather(
            *(_collect(self.events(number), self._scores) for number in range(len(self._pairs)))
        )
        choices = list[CompletionAnswerChoice]()
        for number, (wholes, echo) in enumerate(zip(collected, self._echo, strict=True)):
            echoed = [each async for each in self._echoed(number)]
            text = "".join(each.text for each in echoed) if echoed else echo
            scores: Any = UNSET
            if self._prompt_top is not None:
                scores = await self.prompt_logprobs(self._answers[number], self._prompt_top)
            before = [each.items for each in echoed]
            for whole in wholes:
                await asyncio.sleep(0)  # each choice has a pass of the loop of its own, however many there are
                index = number * self._choices + whole.index
                choice = completion_choice(whole, text, before, index)
                choice.prompt_logprobs = scores
                if self._with_ids:
                    choice.token_ids = whole.token_ids
                    if whole.index == 0:
                        choice.prompt_token_ids = self._pairs[number][0].prompt
                choices.append(choice)
        answer = CompletionAnswer(id=self._id, object="text_completion", choices=choices, **self.common())
        return await signed(self._receipt, answer)

    async def _echoed(self, number: int) -> AsyncIterator[EchoedSlice]:
        """The parts of a prompt that is echoed with its logprobs; none without. Their text is that of their offsets."""
        scores = self._answers[number].scores
        if self._echo_top is not None and scores is not None:
            slices = echoed_slices(self._tokenizer, scores, self._echo_top, skip_special=self._skip_special)
            async for each in in_thread(slices):
                yield each


async def _collect(events: AsyncIterator[Event], scores: Callable[[], Scores | None]) -> list[WholeChoice[Scores]]:
    """`scores`: what collects the logprobs of a choice."""
    wholes: dict[int, WholeChoice[Scores]] = {}
    async for event in events:
        whole = wholes.get(event.index)
        if whole is None:
            whole = wholes[event.index] = WholeChoice(event.index, scores())
        whole.add(event)
    return [wholes[index] for index in sorted(wholes)]


async def numbered(events: AsyncIterator[Event], first: int) -> AsyncIterator[Event]:
    """The events of an answer; its choices count from `first`."""
    async for event in events:
        yield replace(event, index=first + event.index)
