"""The HTTP reply to one response: semantic events while it is generated, or the whole object.

Step 8 of a request's life over HTTP. A stream begins with response.created and ends with response.completed,
response.incomplete or response.failed, each with the response as it stands then."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Finished
from gateway.answers.usage import TokenUsage, usage_of
from gateway.dialects.common.sse import DONE, encode
from gateway.dialects.described.responses import (
    CachedInput,
    ErrorCode,
    ReasoningOutput,
    ResponseAnswer,
    ResponseError,
    ResponseIncomplete,
    ResponseUsage,
)
from gateway.dialects.openai.answer import answer_timings, chat_logprobs, fingerprint_of
from gateway.dialects.openai.signed import put_in, signed
from gateway.dialects.responses.events import OutputItems, ResponseEvents
from gateway.dialects.responses.keeping import KeptResponse
from gateway.dialects.responses.types import ResponsesRequest
from gateway.dialects.translation.parts import AnswerParts, Happened, PartKind, PartStep
from gateway.prompts.assets import Assets
from gateway.receipts.receipts import OpenReceipt, noted_events
from gateway.validation.validate import ValidRequest
from mesh.errors import BatonError
from mesh.messages.jobs import End, Token

Json = dict[str, Any]
Clock = Callable[[], float]


class ResponsesReply:
    def __init__(
        self,
        body: ResponsesRequest,
        repeated: Json,
        valid: ValidRequest,
        answer: Answer,
        assets: Assets,
        *,
        clock: Clock,
        receipt: OpenReceipt | None = None,
        kept: KeptResponse | None = None,
    ) -> None:
        self.request_id, self.stream = valid.request.request_id, bool(body.stream)
        self._kept = kept
        self._answer = answer
        self._tokenizer = assets.tokenizer
        self._clock = clock
        self._receipt = receipt
        self._with_logprobs = valid.request.top_logprobs is not None
        self._items = OutputItems(self.request_id, with_logprobs=self._with_logprobs)
        self._parts, self._events = AnswerParts(), ResponseEvents(self._items)
        self._begun = False  # response.created is sent
        self._fixed = fixed_members(body, repeated, valid, assets, created=int(clock()), stored=kept is not None)

    def cancel(self) -> None:
        self._answer.cancel()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        reason = End.STOP
        async for event in noted_events(self._receipt, self._answer):
            if not self._begun:
                yield self._sent(self._beginning())
            if isinstance(event, Finished):
                reason = event.reason
                continue
            for step in self._parts.add(event):
                for piece in self._frames(step, complete=True):
                    yield self._sent(piece)
        complete = reason is not End.LENGTH
        for step in self._parts.finish():
            for piece in self._frames(step, complete=complete):
                yield self._sent(piece)
        kind = "response.completed" if complete else "response.incomplete"
        response = self._ended(complete)
        if self._kept is not None:
            await self._kept.keep(response)
        if self._receipt is not None:
            put_in(response, await self._receipt.of_stream(*self._events.next(kind, {"response": response})))
        for piece in self._events.event(kind, {"response": response}):
            yield piece

    async def whole(self) -> ResponseAnswer:
        reason = End.STOP
        async for event in noted_events(self._receipt, self._answer):
            if isinstance(event, Finished):
                reason = event.reason
            else:
                self._collect(event)
        for _ in self._parts.finish():
            pass
        response = self._ended(reason is not End.LENGTH)
        if self._kept is not None:
            await self._kept.keep(response)
        return await signed(self._receipt, response)

    def _sent(self, piece: bytes) -> bytes:
        return piece if self._receipt is None else self._receipt.sent(piece)

    def failure(self, error: BatonError) -> bytes:
        """The last events of a stream that an error ends."""
        begun = b"" if self._begun else self._beginning()
        response = self._ended(False)
        response.status, response.incomplete_details = "failed", None
        response.error = ResponseError(code=_code(error), message=error.message, param=error.field, reason=error.reason)
        if error.details:
            response.error.details = dict(error.details)
        return begun + b"".join(self._events.event("response.failed", {"response": response})) + DONE

    def _beginning(self) -> bytes:
        self._begun = True
        response = begun_response(self._fixed)
        kinds = ("response.created", "response.in_progress")
        return b"".join(piece for kind in kinds for piece in self._events.event(kind, {"response": response}))

    def _frames(self, step: PartStep, *, complete: bool) -> list[bytes]:
        if step.what is Happened.BEGAN:
            return self._events.begun(step.part)
        if step.what is Happened.ENDED:
            return self._events.ended(step.part, complete=complete)
        return [self._events.delta(step.text, self._note_logprobs(step))]

    def _collect(self, delta: Delta) -> None:
        for step in self._parts.add(delta):
            if step.what is Happened.GREW:
                self._note_logprobs(step)

    def _note_logprobs(self, step: PartStep) -> bytes | None:
        """The list of the new tokens' logprobs, which the part keeps; None for what is no text."""
        if step.part.kind is not PartKind.TEXT:
            return None
        if not self._with_logprobs or not step.tokens:
            return b"[]"
        entries = self._entries(step.tokens)
        step.part.logprobs.append(entries[1:-1])
        return entries

    def _entries(self, tokens: Sequence[Token]) -> bytes:
        return encode(chat_logprobs(self._tokenizer, tokens).content)

    def _ended(self, complete: bool) -> ResponseAnswer:
        """The response as it stands; only its last part may be incomplete."""
        parts = self._parts.parts
        output = [self._items.ended(part, complete=complete or part is not parts[-1]) for part in parts]
        return ResponseAnswer(
            **self._fixed,
            status="completed" if complete else "incomplete",
            completed_at=int(self._clock()) if complete else None,
            error=None,
            incomplete_details=None if complete else ResponseIncomplete("max_output_tokens"),
            output=output,
            usage=_usage(usage_of([self._answer])),
            timings=answer_timings([self._answer]),
            system_fingerprint=fingerprint_of(self._answer.numerics),
        )


def fixed_members(
    body: ResponsesRequest, repeated: Json, valid: ValidRequest, assets: Assets, *, created: int, stored: bool
) -> Json:
    """The members of a response that are known before its first token."""
    served = valid.choices[0].sampling if valid.choices else None
    return {
        "id": f"resp_{valid.request.request_id}",
        "object": "response",
        "created_at": created,
        "model": body.model or assets.name,
        "background": bool(body.background),
        "previous_response_id": body.previous_response_id,
        "store": stored,
        "temperature": served.temperature if served is not None else body.temperature,
        "top_p": served.top_p if served is not None else body.top_p,
        "truncation": "disabled",
        **repeated,
    }


def begun_response(fixed: Json) -> ResponseAnswer:
    return ResponseAnswer(**fixed, status="in_progress", error=None, incomplete_details=None, output=[], usage=None)


def _code(error: BatonError) -> ErrorCode:
    if error.http_status == 400:
        return "invalid_prompt"
    return "rate_limit_exceeded" if error.http_status == 429 else "server_error"


def _usage(usage: TokenUsage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=CachedInput(usage.cached_tokens, 0),
        output_tokens=usage.completion_tokens,
        output_tokens_details=ReasoningOutput(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
