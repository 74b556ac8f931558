"""The HTTP reply to a chat: frames while it is generated, or one whole message.

Step 8 of a request's life over HTTP."""

from collections.abc import AsyncGenerator
from functools import partial

from gateway.answers.events import Delta
from gateway.dialects.common.sse import ChatFrames, with_member
from gateway.dialects.described.answers import ChatAnswer
from gateway.dialects.openai.answer import (
    ChatScores,
    Json,
    chat_choice,
    chat_logprobs,
    finish_fields,
    reasoning_fields,
    tool_pieces,
)
from gateway.dialects.openai.reply import BaseReply, Pairs, made, whole_choices
from gateway.dialects.openai.signed import signed
from gateway.dialects.openai.types import ChatRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt


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
        self._echo = echoed_text(body)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        frames, begun = self._frames, set[int]()  # choices whose first frame is sent
        async for event in self.events(0):
            if event.index not in begun:
                begun.add(event.index)
                role = frames.role(event.index)
                if self._with_ids and len(begun) == 1:
                    role = with_member(role, "prompt_token_ids", self._request.prompt)
                yield self.shown(role)
                if self._echo:
                    yield self.shown(frames.text(event.index, self._echo, None))
            if isinstance(event, Delta):
                also = self.ids_of(event)
                if event.reasoning and self._with_reasoning:
                    yield self.shown(frames.delta(event.index, reasoning_fields(event.reasoning)))
                if event.text or self._with_logprobs or also:
                    yield self.shown(await made(partial(self._text, event, also), event))
                if event.calls:
                    yield self.shown(frames.delta(event.index, {"tool_calls": tool_pieces(event.calls)}))
            else:
                yield self.shown(frames.finish(event.index, finish_fields(event), self.fingerprint))
        if last := await self.last_frame(frames):
            yield last

    def _text(self, event: Delta, also: Json) -> bytes:
        logprobs = chat_logprobs(self._names, event.tokens) if self._with_logprobs else None
        return self._frames.text(event.index, event.text, logprobs, also)

    def _scores(self) -> ChatScores | None:
        return ChatScores(self._names) if self._with_logprobs else None

    async def whole(self) -> ChatAnswer:
        wholes = await whole_choices(self.events(0), self._scores)
        for whole in wholes:
            whole.texts.insert(0, self._echo)
        choices = [chat_choice(whole, self._with_reasoning) for whole in wholes]
        answer = ChatAnswer(id=self._id, object="chat.completion", choices=choices, **self.common())
        if self._prompt_top is not None:
            answer.prompt_logprobs = await self.prompt_logprobs(self._answer, self._prompt_top)
        if self._with_ids:
            answer.prompt_token_ids = self._request.prompt
            for choice, whole in zip(choices, wholes, strict=True):
                choice.token_ids = whole.token_ids
        return await signed(self._receipt, answer)


def echoed_text(body: ChatRequest) -> str:
    """The text that stands in front of each choice: the last message's, where the answer belongs to the same role. It
    does so where the message is an assistant's, and where no new turn begins behind it."""
    last = body.messages[-1] if body.messages else {}
    same_role = body.add_generation_prompt is False or body.continue_final_message or last.get("role") == "assistant"
    if not (body.echo and same_role):
        return ""
    content = last.get("content") or ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
