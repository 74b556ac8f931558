"""Events of an answer as messages of baton.inference.v1. Step 8 of a request's life over gRPC."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain, islice

from baton.inference.v1 import inference_pb2 as pb
from gateway.answers.answer import Answer
from gateway.answers.events import Delta, Finished
from gateway.answers.usage import timings_of, usage_of
from gateway.core.interface import PromptScores
from gateway.grpc.request import AskedRequest, class_of
from gateway.grpc.tools import tool_call, tool_call_part
from gateway.grpc.whole import sent_answer
from gateway.receipts.answers.file import RECEIPT, SALT
from gateway.receipts.receipts import OpenReceipt
from gateway.validation.client_request import ClientRequest
from mesh.messages.jobs import End

_SCORED = 512  # tokens of a prompt whose logprobs are one event, wherever they were computed
_LISTED = 65_536  # likeliest tokens that one event lists: gRPC's clients take 4 MiB at most
_IDS = 16_384  # ids of a prompt that are converted in one piece


@dataclass(frozen=True, slots=True)
class ReplyOptions:
    """The parts of an answer that a client may leave out or ask for."""

    reasoning: bool = True
    prompt_ids: bool = False
    usage: bool = False  # with every event

    @classmethod
    def of(cls, asked: AskedRequest) -> "ReplyOptions":
        request = asked.request
        return cls(
            reasoning=request.include_reasoning if request.HasField("include_reasoning") else True,
            prompt_ids=request.return_prompt_token_ids,
            usage=asked.continuous_usage,
        )


async def messages(
    request: ClientRequest, answer: Answer, options: ReplyOptions, receipt: OpenReceipt | None = None
) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
    classes: list[str] = []  # numerics classes sent so far, the class of Started first
    class_of_choice: dict[int, str] = {}
    noted = answer.events() if receipt is None else receipt.noting(0, answer.events())
    sent = _noted(receipt)
    async with aclosing(noted) as events:
        async for event in events:
            if not classes:
                classes.append(answer.numerics)
                yield sent(await _started(request, answer, options))
                if answer.scores is not None:
                    for part in scored_parts(answer.scores):
                        yield sent(pb.StreamGenerateResponse(prompt_logprobs=part))
                        await asyncio.sleep(0)
            usage = _usage(answer) if options.usage else None
            if isinstance(event, Finished):
                yield sent(pb.StreamGenerateResponse(choice_finished=_choice_finished(event), usage=usage))
                continue
            before = class_of_choice.get(event.index, request.numerics_of.get(event.index, classes[0]))
            class_of_choice[event.index] = event.numerics
            if event.numerics not in classes:
                classes.append(event.numerics)
            delta = _delta(request, event, with_reasoning=options.reasoning)
            if event.numerics != before:
                delta.numerics_class.CopyFrom(class_of(event.numerics))
            yield sent(pb.StreamGenerateResponse(delta=delta, usage=usage))
    finished = sent(_finished(answer, classes[1:]))
    if receipt is not None:
        signed = await receipt.of_parts(sent_answer)
        finished.finished.receipt_json, finished.finished.receipt_salt = json.dumps(signed[RECEIPT]), signed[SALT]
    yield finished


def _noted(receipt: OpenReceipt | None) -> Callable[[pb.StreamGenerateResponse], pb.StreamGenerateResponse]:
    """Passes an event on; the receipt, where the client wants one, notes it."""
    if receipt is None:
        return lambda event: event

    def note(event: pb.StreamGenerateResponse) -> pb.StreamGenerateResponse:
        receipt.sent(event.SerializeToString())
        return event

    return note


def scored_parts(scores: PromptScores) -> Iterator[pb.PromptLogprobs]:
    """The logprobs of a prompt, in parts that begin at the same positions whatever its workers have sent; at least one
    part."""
    entries, position = scores.entries(), 1
    first = next(entries, None)
    size = max(1, min(_SCORED, _LISTED // max(1, len(first.top_ids)))) if first is not None else 1
    entries = entries if first is None else chain([first], entries)
    while (some := list(islice(entries, size))) or position == 1:
        yield pb.PromptLogprobs(
            position=position,
            token_ids=[entry.token for entry in some],
            logprobs=[entry.logprob for entry in some],
            ranks=[entry.rank for entry in some],
            top_ids=[token for entry in some for token in entry.top_ids],
            top_logprobs=[logprob for entry in some for logprob in entry.top_logprobs],
        )
        position += len(some)
        if len(some) < size:
            return


async def _started(request: ClientRequest, answer: Answer, options: ReplyOptions) -> pb.StreamGenerateResponse:
    started = pb.Started(
        seed=answer.seed,
        numerics_class=class_of(answer.numerics),
        request_id=request.request_id,
        prompt_tokens=answer.prompt_tokens,
    )
    for at in range(0, len(request.prompt) if options.prompt_ids else 0, _IDS):
        started.prompt_token_ids.extend(request.prompt[at : at + _IDS])
        await asyncio.sleep(0)
    return pb.StreamGenerateResponse(started=started)


def _delta(request: ClientRequest, event: Delta, *, with_reasoning: bool) -> pb.Delta:
    delta = pb.Delta(
        index=event.index,
        position=event.tokens[0].position,
        token_ids=[token.token for token in event.tokens],
        text=event.text,
    )
    if event.reasoning and with_reasoning:
        delta.reasoning = event.reasoning
    if request.reading.growing:
        delta.tool_call_parts.extend(map(tool_call_part, event.calls))
    else:
        delta.tool_calls.extend(map(tool_call, event.calls))
    if request.top_logprobs is not None:
        for token in event.tokens:
            delta.logprobs.add(logprob=token.logprob, top_ids=token.top_ids, top_logprobs=token.top_logprobs)
    return delta


def _choice_finished(event: Finished) -> pb.ChoiceFinished:
    stopped = pb.FINISH_REASON_TOOL_CALLS if event.called else pb.FINISH_REASON_STOP
    reason = pb.FINISH_REASON_LENGTH if event.reason is End.LENGTH else stopped
    finished = pb.ChoiceFinished(index=event.index, reason=reason)
    if event.stop_id is not None:
        finished.stop_token_id = event.stop_id
    if event.stop_string is not None:
        finished.stop_string = event.stop_string
    return finished


def _usage(answer: Answer) -> pb.Usage:
    usage = usage_of([answer])
    found = pb.Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
    )
    if answer.timings:  # at least one choice ran
        found.cached_tokens = usage.cached_tokens
        found.drafted_tokens, found.accepted_tokens = usage.drafted_tokens, usage.accepted_tokens
    return found


def _finished(answer: Answer, changed: list[str]) -> pb.StreamGenerateResponse:
    finished = pb.Finished(usage=_usage(answer), changed_to=[class_of(numerics) for numerics in changed])
    if answer.timings:
        for name, value in timings_of([answer]).items():
            setattr(finished.timings, name, value)
    return pb.StreamGenerateResponse(finished=finished)
