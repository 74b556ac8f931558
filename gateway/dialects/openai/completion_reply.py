"""The HTTP reply to a completion: frames while it is generated, or one whole body.

Step 8 of a request's life over HTTP. A request with several prompts has an answer for each; their choices share one
numbering."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.answers.events import Delta, merge
from gateway.dialects.common.pieces import in_thread
from gateway.dialects.common.sse import CompletionFrames
from gateway.dialects.described.answers import CompletionAnswer, CompletionAnswerChoice
from gateway.dialects.openai.answer import CompletionScores, Json, completion_choice, completion_logprobs, finish_fields
from gateway.dialects.openai.prompt_logprobs import EchoedSlice, echoed_slices
from gateway.dialects.openai.reply import BaseReply, Pairs, likeliest, made, numbered, whole_choices
from gateway.dialects.openai.signed import signed
from gateway.dialects.openai.types import CompletionRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt


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
        self._echo_top = likeliest(body.logprobs, assets) if body.echo else None  # logprobs of the prompts too

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
                also = self.ids_of(event)
                if also and index // self._choices not in begun:
                    also |= {"prompt_token_ids": self._pairs[index // self._choices][0].prompt}
                    begun.add(index // self._choices)
                if event.text or self._with_logprobs or also:
                    yield self.shown(await made(partial(self._text, event, bases[index], also), event))
            else:
                yield self.shown(frames.finish(index, finish_fields(event), self.fingerprint))
        if last := await self.last_frame(frames):
            yield last

    def _text(self, event: Delta, base: int, also: Json) -> bytes:
        """`base`: characters of the prompt that the choice repeats."""
        logprobs = None
        if self._with_logprobs:
            offsets = [base + offset for offset in event.offsets]
            logprobs = completion_logprobs(self._names, event.tokens, offsets)
        return self._frames.text(event.index, event.text, logprobs, also)

    def _scores(self) -> CompletionScores | None:
        return CompletionScores(self._names) if self._with_logprobs else None

    async def whole(self) -> CompletionAnswer:
        collected = await asyncio.gather(
            *(whole_choices(self.events(number), self._scores) for number in range(len(self._pairs)))
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
