"""`POST /inference/v1/generate`, vLLM's dialect: token ids in, token ids out.

With `output_mode: "text"` the answer has its text too. Steps 1 and 8 of a request's life over HTTP."""

from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import msgspec

from gateway.answers.events import Delta, Event
from gateway.dialects.common.pieces import GrowingList
from gateway.dialects.common.sse import encode, frame
from gateway.dialects.described.native import (
    CandidateToken,
    NumberedLogprobs,
    NumberedToken,
    TokenAnswer,
    TokenAnswerChoice,
)
from gateway.dialects.native.dialect import CompletionDialect
from gateway.dialects.native.types import TokenGenerateBody, VllmSampling, check_off, idle_fields
from gateway.dialects.openai.answer import Json, chat_logprobs, finish_fields
from gateway.dialects.openai.reply import BaseReply, Pairs, made
from gateway.dialects.openai.signed import signed
from gateway.dialects.openai.types import CompletionRequest
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt
from mesh.errors import InvalidRequest
from mesh.messages.jobs import Token

PATH = "sampling_params."
_SHARED = tuple(name for name in VllmSampling.__struct_fields__ if name in CompletionRequest.__struct_fields__)
_NAMES = {"prompt": "token_ids", **{name: PATH + name for name in _SHARED}, "top_logprobs": f"{PATH}logprobs"}


def _translate(body: TokenGenerateBody, ignored: list[str]) -> CompletionRequest:
    wanted, prompt = body.sampling_params or VllmSampling(), _prompt(body.token_ids)
    check_off(wanted, PATH)
    ignored += idle_fields(wanted, PATH)
    if body.output_mode == "text" and wanted.detokenize is False:
        raise InvalidRequest(f"{PATH}detokenize", f"{PATH}detokenize must not be false with output_mode text")
    return CompletionRequest(
        prompt=prompt,
        model=body.model,
        request_id=body.request_id,
        stream=body.stream,
        stream_options=body.stream_options,
        cache_salt=body.cache_salt,
        priority=body.priority,
        return_token_ids=body.return_token_ids,
        numerics_class=body.numerics_class,
        receipt=body.receipt,
        **{name: getattr(wanted, name) for name in _SHARED},
    )


def _prompt(ids: list[int] | None) -> Any:
    if not ids:
        what = "is missing: the token ids of the prompt" if ids is None else "is empty; it needs at least one token"
        raise InvalidRequest("token_ids", f"token_ids {what}")
    return ids


class TokenReply(BaseReply):
    prefix = "generate"

    def __init__(
        self,
        body: TokenGenerateBody,
        plain: CompletionRequest,
        pairs: Pairs,
        assets: Assets,
        created: int,
        receipt: OpenReceipt | None,
    ) -> None:
        super().__init__(plain, pairs, assets, created=created, receipt=receipt)
        self._mode = body.output_mode or "tokens"
        self._with_logprobs = plain.logprobs is not None
        self._prompt: Json = {"prompt_token_ids": pairs[0][0].prompt} if self._with_ids else {}

    async def frames(self) -> AsyncGenerator[bytes, None]:
        head, first = {"request_id": self.request_id, "output_mode": self._mode}, self._prompt
        async for event in self.events(0):
            piece = await made(partial(self._piece, event), event)
            yield self.shown(frame(head | first | {"choices": [piece]}))
            first = {}
        last: Json = {"usage": self.usage()} if self._with_usage else {}
        end: Json = head | {"choices": []} | last
        if self._receipt is not None:
            last = end = end | await self._receipt.of_stream(frame(end))
        if last:
            yield frame(end)

    async def whole(self) -> TokenAnswer:
        found: dict[int, _TokenChoice] = {}
        async for event in self.events(0):
            logprobs = await made(partial(self._logprobs, event), event)
            found.setdefault(event.index, _TokenChoice()).add(event, logprobs)
        answer = TokenAnswer(
            request_id=self.request_id,
            output_mode=self._mode,
            choices=[self._choice(index, found[index]) for index in sorted(found)],
            prompt_logprobs=None,
            **self.common(),
            **self._prompt,
        )
        if self._prompt_top is not None:
            answer.prompt_logprobs = await self.prompt_logprobs(self._answers[0], self._prompt_top)
        return await signed(self._receipt, answer)

    def _piece(self, event: Event) -> Json:
        """A choice of a frame."""
        ids: list[int] = []
        text, end = "", {"finish_reason": None}
        if isinstance(event, Delta):
            ids, text = [token.token for token in event.tokens], event.text
        else:
            end = finish_fields(event)
        choice: Json = {"index": event.index, "token_ids": ids, "logprobs": None} | end
        if (entries := self._logprobs(event)) is not None:
            choice["logprobs"] = {"content": msgspec.Raw(b"[%b]" % entries)}
        return choice | ({"text": text} if self._mode == "text" else {})

    def _choice(self, index: int, choice: "_TokenChoice") -> TokenAnswerChoice:
        logprobs = NumberedLogprobs(choice.logprobs.pieces()) if self._with_logprobs else None
        whole = TokenAnswerChoice(index=index, token_ids=choice.ids.pieces(), logprobs=logprobs, **choice.end)
        if self._mode == "text":
            whole.text = "".join(choice.texts)
        return whole

    def _logprobs(self, event: Event) -> bytes | None:
        """The entries of new tokens, without brackets; None without any."""
        if not self._with_logprobs or not isinstance(event, Delta) or not event.tokens:
            return None
        if self._mode == "text":
            return encode(chat_logprobs(self._names, event.tokens).content)[1:-1]
        return encode([token_entry(token) for token in event.tokens])[1:-1]


class _TokenChoice:
    """One choice as it grows. What is long stays encoded, so that nothing at the end takes long."""

    def __init__(self) -> None:
        self.texts = list[str]()
        self.ids = GrowingList()
        self.logprobs = GrowingList()
        self.end: Json = {}

    def add(self, event: Event, logprobs: bytes | None) -> None:
        if not isinstance(event, Delta):
            self.end = finish_fields(event)
            return
        self.texts.append(event.text)
        if event.tokens:
            self.ids.add(encode([token.token for token in event.tokens])[1:-1])
        if logprobs is not None:
            self.logprobs.add(logprobs)


def token_entry(token: Token) -> NumberedToken:
    """Logprobs of one token by ids: the token itself, and the likeliest ones, the token first."""
    tops: Sequence[tuple[int, float]] = list(zip(token.top_ids, token.top_logprobs, strict=True))
    ranks = {top: rank for rank, (top, _) in enumerate(tops, 1)}

    def about(number: int, logprob: float) -> Json:
        name = f"token_id:{number}"  # as earlier versions of vLLM spell it
        return {"token": name, "logprob": logprob, "token_id": number, "rank": ranks.get(number)}

    own = about(token.token, token.logprob)
    others = [CandidateToken(**about(top, logprob)) for top, logprob in tops if top != token.token]
    return NumberedToken(**own, top_logprobs=[CandidateToken(**own), *others] if tops else [])


VLLM = CompletionDialect(
    path="/inference/v1/generate",
    body=TokenGenerateBody,
    translate=_translate,
    names=lambda body: _NAMES,
    reply=TokenReply,
)
