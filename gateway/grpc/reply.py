"""Events of an answer as messages of baton.inference.v1. Step 8 of a request's life over gRPC."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from baton.inference.v1 import inference_pb2 as pb
from gateway.answer import Answer
from gateway.events import Delta, Finished
from gateway.grpc.conversation import tool_call
from gateway.grpc.request import class_of
from gateway.receipts.receipts import OpenReceipt
from gateway.usage import timings_of, usage_of
from gateway.validation import ClientRequest
from mesh.messages import End


async def messages(
    request: ClientRequest, answer: Answer, receipt: OpenReceipt | None = None
) -> AsyncGenerator[pb.StreamGenerateResponse, None]:
    classes: list[str] = []  # numerics classes sent so far, the class of Started first
    class_of_choice: dict[int, str] = {}
    with_logprobs = request.top_logprobs is not None
    noted = answer.events() if receipt is None else receipt.noting(0, answer.events())
    async with aclosing(noted) as events:
        async for event in events:
            if not classes:
                classes.append(answer.numerics)
                yield _started(request, answer)
            if isinstance(event, Finished):
                yield _choice_finished(event)
                continue
            before = class_of_choice.get(event.index, request.numerics_of.get(event.index, classes[0]))
            class_of_choice[event.index] = event.numerics
            if event.numerics not in classes:
                classes.append(event.numerics)
            yield _delta(event, with_logprobs, changed=event.numerics != before)
    finished = _finished(answer, classes[1:])
    if receipt is not None:
        finished.finished.receipt_json = json.dumps(await receipt.finish())
    yield finished


def grow(choice: pb.Choice, event: pb.StreamGenerateResponse) -> None:
    """Add an event to the choice of a whole answer."""
    if event.WhichOneof("event") == "delta":
        choice.token_ids.extend(event.delta.token_ids)
        choice.text += event.delta.text
        choice.logprobs.extend(event.delta.logprobs)
        choice.tool_calls.extend(event.delta.tool_calls)
    else:
        choice.finished.CopyFrom(event.choice_finished)


def _started(request: ClientRequest, answer: Answer) -> pb.StreamGenerateResponse:
    started = pb.Started(
        seed=answer.seed,
        numerics_class=class_of(answer.numerics),
        request_id=request.request_id,
        prompt_tokens=answer.prompt_tokens,
    )
    return pb.StreamGenerateResponse(started=started)


def _delta(event: Delta, with_logprobs: bool, *, changed: bool) -> pb.StreamGenerateResponse:
    delta = pb.Delta(
        index=event.index,
        position=event.tokens[0].position,
        token_ids=[token.token for token in event.tokens],
        text=event.text,
        tool_calls=map(tool_call, event.calls),
    )
    if changed:
        delta.numerics_class.CopyFrom(class_of(event.numerics))
    if with_logprobs:
        for token in event.tokens:
            delta.logprobs.add(logprob=token.logprob, top_ids=token.top_ids, top_logprobs=token.top_logprobs)
    return pb.StreamGenerateResponse(delta=delta)


def _choice_finished(event: Finished) -> pb.StreamGenerateResponse:
    stopped = pb.FINISH_REASON_TOOL_CALLS if event.called else pb.FINISH_REASON_STOP
    reason = pb.FINISH_REASON_LENGTH if event.reason is End.LENGTH else stopped
    finished = pb.ChoiceFinished(index=event.index, reason=reason)
    if event.stop_id is not None:
        finished.stop_token_id = event.stop_id
    if event.stop_string is not None:
        finished.stop_string = event.stop_string
    return pb.StreamGenerateResponse(choice_finished=finished)


def _finished(answer: Answer, changed: list[str]) -> pb.StreamGenerateResponse:
    usage = usage_of([answer])
    finished = pb.Finished(
        usage=pb.Usage(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
        ),
        changed_to=[class_of(numerics) for numerics in changed],
    )
    if answer.timings:  # at least one choice ran
        finished.usage.cached_tokens = usage.cached_tokens
        finished.usage.drafted_tokens, finished.usage.accepted_tokens = usage.drafted_tokens, usage.accepted_tokens
        for name, value in timings_of([answer]).items():
            setattr(finished.timings, name, value)
    return pb.StreamGenerateResponse(finished=finished)
