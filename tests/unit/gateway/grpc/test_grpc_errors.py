"""Errors over gRPC: statuses, details, deadlines and cancels."""

import asyncio
from typing import Any

import grpc
import pytest

from baton.inference.v1 import inference_pb2 as pb
from gateway.grpc.errors import abort
from mesh.errors import ClassUnavailable, InvalidRequest, Unavailable
from tests.harness.waiting import within
from tests.unit.gateway.public_grpc import ask, details_of, events_of


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.GenerateRequest(), "prompt"),
        (pb.GenerateRequest(text=""), "text"),
        (pb.GenerateRequest(token_ids=pb.TokenIds(ids=[9999])), "token_ids"),
        (pb.GenerateRequest(chat=pb.Chat()), "chat.messages"),
        (pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user")])), "chat.messages[0].content"),
        (pb.GenerateRequest(chat=pb.Chat(template_arguments_json="[")), "chat.template_arguments_json"),
        (pb.GenerateRequest(text="x" * 600), "text"),
        (ask(sampling=pb.SamplingOptions(temperature=-1)), "sampling.temperature"),
        (ask(sampling=pb.SamplingOptions(temperature=float("nan"))), "sampling.temperature"),
        (ask(sampling=pb.SamplingOptions(top_p=0)), "sampling.top_p"),
        (ask(sampling=pb.SamplingOptions(n=0)), "sampling.n"),
        (ask(stop=pb.StopOptions(max_tokens=1000)), "text"),
        (ask(stop=pb.StopOptions(max_tokens=1, min_tokens=3)), "stop.min_tokens"),
        (ask(stop=pb.StopOptions(max_tokens=1, min_tokens=2)), "stop.min_tokens"),
        (ask(stop=pb.StopOptions(strings=[""])), "stop.strings"),
        (ask(stop=pb.StopOptions(token_ids=[999])), "stop.token_ids"),
        (ask(logprobs=pb.LogprobOptions(top=21)), "logprobs.top"),
        (ask(emitted=[pb.Emitted(index=1, token_ids=[1])], sampling=pb.SamplingOptions(seed=1)), "emitted"),
        (ask(emitted=[pb.Emitted(index=0, token_ids=[1])]), "sampling.seed"),
        (ask(request_id="two words"), "request_id"),
        (ask(priority=601), "priority"),
        (ask(structured_output=pb.StructuredOutput(regex="(a")), "structured_output.regex"),
        (ask(structured_output=pb.StructuredOutput(json_schema='{"not": {}}')), "structured_output.json_schema.not"),
        (ask(structured_output=pb.StructuredOutput(choice=pb.StringChoice())), "structured_output.choice"),
        (ask(priority=-601), "priority"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_field_is_named_in_the_details(stub: Any, core: Any, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    details = details_of(refused.value)
    assert [violation.field for violation in details["BadRequest"].field_violations] == [field]
    assert details["ErrorInfo"].domain == "baton"
    assert core.streams == []


async def test_an_unknown_model_is_not_found(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(ask(model="other"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'tiny'" in str(refused.value.details())
    assert (await stub.Generate(ask(model="tiny"))).choices[0].text == "hello world"


async def test_an_error_that_may_pass_has_a_retry_delay(stub: Any, core: Any) -> None:
    core.refuse = Unavailable("later", retry_after_seconds=1.5)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await events_of(stub, ask(request_id="r9"))
    details = details_of(refused.value)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert details["RetryInfo"].retry_delay.ToMilliseconds() == 1500
    assert details["RequestInfo"].request_id == "r9"


async def test_a_failure_in_the_middle_comes_after_the_tokens_before_it(stub: Any, core: Any) -> None:
    core.fail_at = {3: ClassUnavailable("fingerprints a and b")}
    text = ""
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=ask())):
            text += event.delta.text
    assert text == "hel"
    assert failure.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_defect_shows_no_detail(stub: Any, core: Any) -> None:
    core.refuse = ZeroDivisionError("secret")
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Generate(ask())
    assert failure.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(failure.value.details())


async def test_the_deadline_reaches_the_core_and_ends_the_call(stub: Any, core: Any) -> None:
    core.ends = False
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await stub.Generate(ask(), timeout=1.5)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert 0 < core.streams[0].choice.deadline_seconds <= 2  # gRPC rounds up
    await within(20, lambda: core.streams[0].cancelled)
    core.ends = True
    await stub.Generate(ask())
    assert core.streams[1].choice.deadline_seconds is None


async def test_cancelling_the_call_cancels_every_choice(stub: Any, core: Any) -> None:
    core.ends = False
    call = stub.StreamGenerate(pb.StreamGenerateRequest(request=ask(sampling=pb.SamplingOptions(n=3))))
    await call.read()
    call.cancel()
    await within(20, lambda: len(core.streams) == 3 and all(stream.cancelled for stream in core.streams))


@pytest.mark.parametrize(("raised", "seen"), [(grpc.aio.InternalError, asyncio.CancelledError), (TypeError, TypeError)])
async def test_an_error_for_a_client_that_has_gone_is_no_defect(
    raised: type[Exception], seen: type[BaseException]
) -> None:
    class Gone:
        async def abort(self, *_: object) -> None:
            raise raised("the call is over")

    with pytest.raises(seen):
        await abort(Gone(), InvalidRequest("n", "n is wrong"), "same")
