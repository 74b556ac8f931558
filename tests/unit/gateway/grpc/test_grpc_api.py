"""The public gRPC API against a real server: events, prompts, models, health."""

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from mesh.network.grpc_network import GrpcListening
from tests.unit.gateway.public_grpc import CLASS, ask, events_of


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


async def test_unary_and_stream_have_the_same_answer(stub: Any, core: Any) -> None:
    core.reply = lambda choice: "answer %d ünd".encode() % choice.sampling.choice
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
    first, second = (stream.choice.sampling for stream in core.streams)
    assert (first.temperature, second.temperature, second.seed) == (1.0, 0.0, 0)
    assert first.seed != 0


async def test_prompts_are_text_ids_or_chat(stub: Any, core: Any) -> None:
    message = pb.ChatMessage(role="user", content="hi")
    await stub.Generate(pb.GenerateRequest(text="ab"))
    await stub.Generate(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2])))
    await stub.Generate(pb.GenerateRequest(chat=pb.Chat(messages=[message])))
    chat = pb.Chat(messages=[message], template_arguments_json='{"shout": true}', add_generation_prompt=False)
    await stub.Generate(pb.GenerateRequest(chat=chat))
    assert [stream.choice.prompt for stream in core.streams] == [
        (97, 98),
        (1, 2),
        (258, *b"hi", 257, 259),
        (258, *b"hi", 257, ord("!")),
    ]


async def test_a_stopped_choice_is_cancelled_while_others_go_on(stub: Any, core: Any) -> None:
    core.reply = lambda choice: b"a stop b" if choice.sampling.choice == 0 else b"on and on"
    core.ends = False
    request = ask(sampling=pb.SamplingOptions(n=2), stop=pb.StopOptions(strings=["stop"]))
    call = stub.StreamGenerate(pb.StreamGenerateRequest(request=request))
    async for event in call:
        if event.HasField("choice_finished"):
            break
    assert [stream.cancelled for stream in core.streams] == [True, False]
    call.cancel()


async def test_metadata_name_the_request_and_its_trace(stub: Any, core: Any) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    whole = await stub.Generate(ask(), metadata=(("x-request-id", "r5"), ("traceparent", parent)))
    assert whole.request_id == "r5"
    trace = core.streams[0].choice.trace
    assert (f"{trace.context.trace_id:032x}", f"{trace.parent_id:016x}") == (parent[3:35], parent[36:52])


async def test_models_are_listed(channel: grpc.aio.Channel, core: Any) -> None:
    stub: Any = pb_grpc.ModelServiceStub(channel)
    answer = await stub.ListModels(pb.ListModelsRequest())
    (model,) = answer.models
    assert (model.name, model.context_tokens, model.HasField("model_hash")) == ("tiny", 512, False)
    core.model_hash = "abc"
    (model,) = (await stub.ListModels(pb.ListModelsRequest())).models
    assert model.model_hash == "abc"


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


async def test_a_structured_output_reaches_the_workers_as_a_grammar(stub: Any, core: Any) -> None:
    forms = [
        pb.StructuredOutput(json_schema='{"type": "integer"}'),
        pb.StructuredOutput(json_object=True),
        pb.StructuredOutput(regex="[a-z]+"),
        pb.StructuredOutput(choice=pb.StringChoice(texts=["a", "b"])),
        pb.StructuredOutput(grammar='start: "a"'),
        pb.StructuredOutput(structural_tag='{"structures": [{"begin": "<a>", "end": "</a>"}], "triggers": ["<a>"]}'),
    ]
    for form in forms:
        await stub.Generate(ask(structured_output=form))
    await stub.Generate(ask())
    *grammars, none = (stream.choice.sampling.grammar for stream in core.streams)
    assert all(grammars) and len(set(grammars)) == len(forms) and none == ""
