"""The public gRPC API against a real server: events, continuation, details of errors, deadlines, cancel, health."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from baton.client import Client, request_of
from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway import grpc_api
from mesh.errors import ClassUnavailable, Unavailable
from mesh.grpc_network import GrpcListening, GrpcNetwork
from mesh.messages import Register

CLASS = pb.NumericsClass(name="path=fp32", fingerprint="f00d")


async def serve(core: Any, assets: Any) -> GrpcListening:
    registered: list[Register] = []
    network = GrpcNetwork(also=grpc_api.services(core, assets, random=random.Random(3)))
    return await network.listen("127.0.0.1:0", {}, registered.append)


@pytest.fixture
async def server(core: Any, assets: Any) -> AsyncIterator[GrpcListening]:
    server = await serve(core, assets)
    yield server
    await server.close()


@pytest.fixture
async def channel(server: GrpcListening) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.aio.Channel) -> Any:
    return pb_grpc.InferenceServiceStub(channel)


async def within(seconds: float, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def ask(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**({"text": "x"} | fields))


async def events_of(stub: Any, request: pb.GenerateRequest) -> list[pb.StreamGenerateResponse]:
    return [event async for event in stub.StreamGenerate(pb.StreamGenerateRequest(request=request))]


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    status = rpc_status.from_call(error)
    assert status is not None
    found: dict[str, Any] = {}
    for detail in status.details:
        assert isinstance(detail, any_pb2.Any)
        name = detail.type_url.rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name)()
        detail.Unpack(found[name])
    return found


async def test_a_stream_begins_with_started_and_ends_with_finished(stub: Any, core: Any) -> None:
    events = await events_of(stub, ask(request_id="r1", sampling=pb.SamplingOptions(seed=9)))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["started", *["delta"] * 12, "choice_finished", "finished"]
    started, finished = events[0].started, events[-1].finished
    assert (started.seed, started.request_id, started.prompt_tokens) == (9, "r1", 1)
    assert started.numerics_class == CLASS
    deltas = [event.delta for event in events if event.HasField("delta")]
    assert "".join(delta.text for delta in deltas) == "hello world"
    assert [delta.position for delta in deltas] == list(range(12))
    assert [token for delta in deltas for token in delta.token_ids] == [*b"hello world", 257]
    assert events[-2].choice_finished.reason == pb.FINISH_REASON_STOP
    assert events[-2].choice_finished.WhichOneof("cause") is None
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (1, 12)
    assert finished.timings.first_token_seconds == 0.25
    assert (finished.usage.drafted_tokens, finished.usage.accepted_tokens) == (8, 5)
    assert (finished.timings.decode_steps, finished.timings.tokens_per_step) == (10, 1.5)
    assert not any(delta.logprobs for delta in deltas)


async def test_unary_and_stream_tell_the_same(stub: Any, core: Any) -> None:
    core.reply = lambda spec: "answer %d ünd".encode() % spec.sampling.choice
    request = ask(sampling=pb.SamplingOptions(seed=1, n=2), logprobs=pb.LogprobOptions(top=3))
    whole = await stub.Generate(request)
    texts, tokens, logprobs = {0: "", 1: ""}, {0: [], 1: []}, {0: [], 1: []}
    for event in await events_of(stub, request):
        if event.HasField("delta"):
            texts[event.delta.index] += event.delta.text
            tokens[event.delta.index].extend(event.delta.token_ids)
            logprobs[event.delta.index].extend(event.delta.logprobs)
    assert [choice.text for choice in whole.choices] == ["answer 0 ünd", "answer 1 ünd"] == list(texts.values())
    assert [list(choice.token_ids) for choice in whole.choices] == list(tokens.values())
    assert [list(choice.logprobs) for choice in whole.choices] == list(logprobs.values())
    assert len(whole.choices[0].logprobs[0].top_ids) == 3
    assert whole.started.seed == 1
    assert whole.finished.usage.completion_tokens == sum(map(len, tokens.values()))


async def test_zero_is_not_the_default(stub: Any, core: Any) -> None:
    await stub.Generate(ask())
    await stub.Generate(ask(sampling=pb.SamplingOptions(temperature=0, seed=0)))
    first, second = (handle.spec.sampling for handle in core.handles)
    assert (first.temperature, second.temperature, second.seed) == (1.0, 0.0, 0)
    assert first.seed != 0


async def test_prompts_are_text_ids_or_chat(stub: Any, core: Any) -> None:
    message = pb.ChatMessage(role="user", content="hi")
    await stub.Generate(pb.GenerateRequest(text="ab"))
    await stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2])))
    await stub.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[message])))
    chat = pb.Chat(messages=[message], template_arguments_json='{"shout": true}', add_generation_prompt=False)
    await stub.Generate(pb.GenerateRequest(chat=chat))
    assert [handle.spec.prompt for handle in core.handles] == [
        (97, 98),
        (1, 2),
        (258, *b"hi", 257, 259),
        (258, *b"hi", 257, ord("!")),
    ]


@pytest.mark.parametrize("cut", range(13))
async def test_an_answer_continues_anywhere_with_what_is_missing_and_no_more(stub: Any, core: Any, cut: int) -> None:
    core.reply = "né 漢 end".encode()
    tokens = [*core.reply, 257]
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["endless"]))
    events = await events_of(stub, request)
    deltas = [event.delta for event in events if event.HasField("delta")]
    had = deltas[:cut]
    emitted = [token for delta in had for token in delta.token_ids]
    request.emitted.add(index=0, token_ids=emitted)
    request.numerics_class.CopyFrom(CLASS)
    rest = [event.delta for event in await events_of(stub, request) if event.HasField("delta")]
    assert emitted + [token for delta in rest for token in delta.token_ids] == tokens
    assert "".join(delta.text for delta in [*had, *rest]) == "né 漢 end"


async def test_a_choice_that_is_already_complete_runs_nothing(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(max_tokens=5))
    for emitted, reason in (([104, 257], pb.FINISH_REASON_STOP), (list(b"hello"), pb.FINISH_REASON_LENGTH)):
        del request.emitted[:]
        request.emitted.add(index=0, token_ids=emitted)
        whole = await stub.Generate(request)
        assert whole.choices[0].finished.reason == reason
        assert whole.finished.usage.completion_tokens == len(emitted)
    assert core.handles == []


async def test_a_stop_id_among_the_first_min_tokens_ended_nothing(stub: Any, core: Any) -> None:
    core.reply = b"h" + b"i" * 5
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(token_ids=[104, 105], min_tokens=2))
    request.emitted.add(index=0, token_ids=b"hi")
    assert list((await stub.Generate(request)).choices[0].token_ids) == [105]
    request.emitted[0].token_ids.append(105)
    assert list((await stub.Generate(request)).choices[0].token_ids) == []
    assert len(core.handles) == 1


async def test_a_choice_that_a_stop_string_ended_before_is_ended_again(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["lo"]))
    request.emitted.add(index=0, token_ids=b"hello")
    whole = await stub.Generate(request)
    assert whole.choices[0].finished.stop_string == "lo"
    assert (whole.choices[0].text, list(whole.choices[0].token_ids)) == ("", [])


async def test_a_stopped_choice_is_cancelled_while_others_go_on(stub: Any, core: Any) -> None:
    core.reply = lambda spec: b"a stop b" if spec.sampling.choice == 0 else b"on and on"
    core.ends = False
    request = ask(sampling=pb.SamplingOptions(n=2), stop=pb.StopOptions(strings=["stop"]))
    call = stub.StreamGenerate(pb.StreamGenerateRequest(request=request))
    async for event in call:
        if event.HasField("choice_finished"):
            break
    assert [handle.cancelled for handle in core.handles] == [True, False]
    call.cancel()


async def test_a_continuation_in_another_class_is_refused_unless_allowed(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), numerics_class=pb.NumericsClass(name="x", fingerprint="beef"))
    request.emitted.add(index=0, token_ids=b"he")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request)
    assert details_of(refused.value)["ErrorInfo"].reason == "CLASS_UNAVAILABLE"
    assert "beef" in str(refused.value.details()) and "f00d" in str(refused.value.details())
    request.allow_class_change = True
    assert (await stub.Generate(request)).choices[0].text == "llo world"


async def test_a_class_change_on_the_way_is_told(stub: Any, core: Any) -> None:
    submit = core.submit

    def changing(spec: Any) -> Any:
        handle = submit(spec)
        events = handle.events

        async def with_change() -> AsyncIterator[Any]:
            async for token in events():
                if token.position >= 5:
                    handle.numerics = "other fingerprint cafe"
                yield token

        handle.events = with_change
        return handle

    core.submit = changing
    whole = await stub.Generate(ask(allow_class_change=True))
    assert whole.started.numerics_class == CLASS
    assert [changed.fingerprint for changed in whole.finished.changed_to] == ["cafe"]
    events = await events_of(stub, ask(allow_class_change=True))
    named = [event.delta.position for event in events if event.delta.HasField("numerics_class")]
    assert named == [5]


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
        (ask(stop=pb.StopOptions(max_tokens=0)), "stop.max_tokens"),
        (ask(stop=pb.StopOptions(max_tokens=1, min_tokens=2)), "stop.min_tokens"),
        (ask(stop=pb.StopOptions(strings=[""])), "stop.strings"),
        (ask(stop=pb.StopOptions(token_ids=[999])), "stop.token_ids"),
        (ask(logprobs=pb.LogprobOptions(top=21)), "logprobs.top"),
        (ask(emitted=[pb.Emitted(index=1, token_ids=[1])], sampling=pb.SamplingOptions(seed=1)), "emitted"),
        (ask(emitted=[pb.Emitted(index=0, token_ids=[1])]), "sampling.seed"),
        (ask(request_id="two words"), "request_id"),
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
    assert core.handles == []


async def test_an_unknown_model_is_not_found(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(ask(model="other"))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'tiny'" in str(refused.value.details())
    assert (await stub.Generate(ask(model="tiny"))).choices[0].text == "hello world"


async def test_what_may_be_tried_again_says_when(stub: Any, core: Any) -> None:
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


async def test_a_defect_tells_nothing(stub: Any, core: Any) -> None:
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
    assert 0 < core.handles[0].spec.deadline_seconds <= 2  # gRPC rounds up
    await within(30, lambda: core.handles[0].cancelled)
    core.ends = True
    await stub.Generate(ask())
    assert core.handles[1].spec.deadline_seconds is None


async def test_cancelling_the_call_cancels_every_choice(stub: Any, core: Any) -> None:
    core.ends = False
    call = stub.StreamGenerate(pb.StreamGenerateRequest(request=ask(sampling=pb.SamplingOptions(n=3))))
    await call.read()
    call.cancel()
    await within(30, lambda: len(core.handles) == 3 and all(handle.cancelled for handle in core.handles))


async def test_metadata_name_the_request_and_its_trace(stub: Any, core: Any) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    whole = await stub.Generate(ask(), metadata=(("x-request-id", "r5"), ("traceparent", parent)))
    assert whole.request_id == "r5"
    assert core.handles[0].spec.traceparent == parent


async def test_models_are_listed(channel: grpc.aio.Channel, core: Any) -> None:
    stub: Any = pb_grpc.ModelServiceStub(channel)
    answer = await stub.ListModels(pb.ListModelsRequest())
    assert [(model.name, model.context_tokens) for model in answer.models] == [("tiny", 512)]


async def test_health_can_be_watched(server: GrpcListening, channel: grpc.aio.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    watch = stub.Watch(health_pb2.HealthCheckRequest(service="baton.inference.v1.InferenceService"))
    states = [(await watch.read()).status]
    await server.set_serving(False)
    states.append((await watch.read()).status)
    await server.set_serving(True)
    states.append((await watch.read()).status)
    serving, stopped = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    assert states == [serving, stopped, serving]
    watch.cancel()


async def test_reflection_describes_the_public_service(channel: grpc.aio.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(file_containing_symbol="baton.inference.v1.InferenceService")
    call = stub.ServerReflectionInfo(iter([request]))
    assert (await call.read()).file_descriptor_response.file_descriptor_proto


async def test_the_client_continues_on_the_next_gateway(core: Any, assets: Any) -> None:
    core.reply = "one né two 漢字 three".encode()
    other = type(core)(reply=core.reply, fail_at={7: Unavailable("dying")})
    first, second = await serve(other, assets), await serve(core, assets)
    try:
        async with Client(first.address, second.address) as client:
            assert await client.generate_text("x", temperature=0.7, stop=["never"]) == "one né two 漢字 three"
            request = request_of("x", n=2, max_tokens=9)
            events = [event async for event in client.stream(request)]
        assert core.handles[0].spec.sampling.seed == other.handles[0].spec.sampling.seed
        assert len(core.handles[0].spec.emitted) > 0
        kinds = [event.WhichOneof("event") for event in events]
        assert (kinds.count("started"), kinds.count("choice_finished"), kinds[-1]) == (1, 2, "finished")
        tokens: dict[int, list[int]] = {}
        for event in events:
            if event.HasField("delta"):
                tokens.setdefault(event.delta.index, []).extend(event.delta.token_ids)
        assert tokens == {0: list(core.reply[:9]), 1: list(core.reply[:9])}
    finally:
        await first.close()
        await second.close()


async def test_the_client_raises_what_another_gateway_would_repeat(server: GrpcListening, core: Any) -> None:
    async with Client(server.address, server.address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.generate_text("x", temperature=-1.0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        core.fail_at = {2: Unavailable("dying")}
        with pytest.raises(grpc.aio.AioRpcError):
            await client.generate_text("x")
        assert await client.models() == ["tiny"]
