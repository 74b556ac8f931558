"""What stands beside Generate on the clients' port: tokens, health, reflection, load reports, and vllm.Inference."""

import asyncio
import math
from random import Random
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from baton.inference.v1 import inference_pb2 as pb
from baton.rpc.v1 import rpc_pb2
from baton.vllm.v1 import vllm_pb2 as vllm
from baton.vllm.v1 import vllm_pb2_grpc as vllm_grpc
from gateway.grpc.api import Generating, services, whole
from gateway.grpc.request import AskedRequest
from gateway.grpc.server import serve_grpc
from gateway.observability.traces import RecentTraces
from mesh.config import GatewayConfig
from mesh.errors import Unavailable
from mesh.grpc_network import GrpcListening
from mesh.telemetry import Silent
from tests.unit.gateway.public_grpc import LOAD, ask, details_of, events_of, within

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
INFERENCE = "baton.inference.v1.InferenceService"
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])


# ---- tokens


@pytest.mark.parametrize(
    ("input_", "ids"), [({"text": "ab"}, [97, 98]), ({"chat": CHAT}, [258, *b"hi", 257, 259])], ids=["text", "chat"]
)
async def test_a_text_or_chat_has_the_tokens_that_generate_computes(
    stub: Any, core: Any, input_: dict[str, Any], ids: list[int]
) -> None:
    tokens = await stub.Tokenize(pb.TokenizeRequest(**input_))
    assert (list(tokens.token_ids), tokens.context_tokens) == (ids, 512)
    assert (await stub.CountTokens(pb.CountTokensRequest(**input_))).tokens == len(ids)
    await stub.Generate(pb.GenerateRequest(**input_))
    assert list(core.streams[0].choice.prompt) == ids


async def test_token_ids_become_their_text_with_or_without_special_tokens(stub: Any) -> None:
    ids = [258, *"né".encode(), 257]
    whole = await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))
    assert whole.text == "<|user|>né<|end|>"
    bare = await stub.Detokenize(pb.DetokenizeRequest(token_ids=ids, skip_special_tokens=True))
    assert bare.text == "né"


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("CountTokens", pb.CountTokensRequest(), "input"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[261]), "token_ids"),
        ("Detokenize", pb.DetokenizeRequest(token_ids=[1] * 513), "token_ids"),
        ("CountTokens", pb.CountTokensRequest(chat=pb.Chat()), "chat.messages"),
        ("Tokenize", pb.TokenizeRequest(text="a", model="other"), "model"),
    ],
)
async def test_a_wrong_field_is_named(stub: Any, core: Any, method: str, request_: Any, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await getattr(stub, method)(request_, metadata=(("x-request-id", "r3"),))
    details = details_of(refused.value)
    assert [violation.field for violation in details["BadRequest"].field_violations] == [field]
    assert details["RequestInfo"].request_id == "r3"
    assert len(core.errors) == 1


# ---- health and reflection


async def test_health_lists_every_service(channel: grpc.aio.Channel, server: GrpcListening) -> None:
    listed: Any = channel.unary_unary("/grpc.health.v1.Health/List")

    async def statuses() -> dict[str, int]:
        found = rpc_pb2.HealthListResponse.FromString(await listed(b"")).statuses
        return {name: status.status for name, status in found.items()}

    names = {"", INFERENCE, "baton.inference.v1.ModelService", "vllm.Inference"}
    assert await statuses() == dict.fromkeys(names, SERVING)
    await server.set_serving(False)
    assert await statuses() == dict.fromkeys(names, NOT_SERVING)


async def test_health_says_no_while_warming_up_and_at_the_end_and_watchers_see_both(core: Any, assets: Any) -> None:

    api = services(core, assets, random=Random(1))
    server = await serve_grpc(GatewayConfig(grpc_address="127.0.0.1:0"), api, serving=False)
    async with grpc.aio.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest(service=INFERENCE))).status == NOT_SERVING
        leaving, staying = (health.Watch(health_pb2.HealthCheckRequest(service=INFERENCE)) for _ in range(2))
        assert [(await watch.read()).status for watch in (leaving, staying)] == [NOT_SERVING] * 2
        leaving.cancel()  # another watcher of the same service must not be forgotten with it
        await asyncio.sleep(0.05)
        await server.set_serving(True)
        assert (await staying.read()).status == SERVING
        closing = asyncio.create_task(server.close())
        assert (await staying.read()).status == NOT_SERVING
        assert await staying.read() is grpc.aio.EOF
        await closing


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_the_services_and_itself(channel: grpc.aio.Channel, version: str) -> None:
    reflect: Any = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    call = reflect()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    names = {service.name for service in (await call.read()).list_services_response.service}
    assert {INFERENCE, "vllm.Inference", f"grpc.reflection.{version}.ServerReflection"} <= names
    assert not any("Registry" in name or "Admin" in name for name in names)
    for name in [*sorted(names), f"grpc.reflection.{version}.ServerReflectionRequest"]:
        await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
        answer = await call.read()
        assert answer.file_descriptor_response.file_descriptor_proto, name
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.such.Thing"))
    assert (await call.read()).error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]
    await call.done_writing()


async def test_health_and_reflection_answer_garbage_without_a_traceback(
    channel: grpc.aio.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
    watch: Any = channel.unary_stream("/grpc.health.v1.Health/Watch")
    for call in (check(b"\xff"), watch(b"\xff").read()):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    reflect: Any = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    call = reflect()
    await call.write(b"\xff")
    answer = reflection_pb2.ServerReflectionResponse.FromString(await call.read())
    assert answer.error_response.error_code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    call.cancel()
    assert caplog.records == []


async def test_the_port_of_clients_does_not_serve_workers_and_operators(channel: grpc.aio.Channel) -> None:
    for method in ("baton.worker.v1.RegistryService/Register", "baton.admin.v1.AdminService/Drain"):
        call: Any = channel.unary_unary(f"/{method}")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


# ---- load reports, deadlines, cancels


class FakeContext:
    """A call as the server sees it: gRPC's Python client keeps the load trailer to itself, for its balancers."""

    def __init__(self) -> None:
        self.trailers: dict[str, Any] = {}

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def time_remaining(self) -> None:
        return None

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.trailers = dict(metadata)


async def test_trailers_carry_the_request_and_the_load_for_balancers(stub: Any, core: Any, assets: Any) -> None:
    call = stub.Generate(ask(request_id="r7"))
    await call
    assert dict(await call.trailing_metadata())["x-request-id"] == "r7"
    random, context = Random(1), FakeContext()
    generating = Generating(core, assets, random, RecentTraces(Silent(), random=random), lambda: LOAD, None)

    async def read(_: Any) -> AskedRequest:
        return AskedRequest(ask(request_id="r8"))

    await whole(generating.events(b"", context, "Generate", read))
    assert context.trailers["x-request-id"] == "r8"
    report = rpc_pb2.OrcaLoadReport.FromString(context.trailers["endpoint-load-metrics-bin"])
    assert report.application_utilization == report.utilization["kv_cache"] == 0.75
    assert dict(report.named_metrics) == {
        "kv_cache_usage_perc": 0.75,
        "num_requests_waiting": 3,
        "num_requests_running": 5,
    }
    assert dict(report.request_cost) == {"prompt_tokens": 1, "cached_tokens": 3, "completion_tokens": 12}
    # The numbers of xds.data.orca.v3.OrcaLoadReport, on which clients of other languages rely.
    numbers = {field.name: field.number for field in report.DESCRIPTOR.fields}
    assert numbers == {
        "request_cost": 4,
        "utilization": 5,
        "named_metrics": 8,
        "application_utilization": 9,
    }


async def test_cancelling_the_call_before_the_first_token_cancels_every_choice(stub: Any, core: Any) -> None:
    core.reply, core.ends = b"", False
    request = ask(sampling=pb.SamplingOptions(n=2))
    streamed = stub.StreamGenerate(pb.StreamGenerateRequest(request=request))
    unary = stub.Generate(request)
    await within(20, lambda: len(core.streams) == 4)
    assert not any(stream.cancelled for stream in core.streams)
    streamed.cancel()
    await within(20, lambda: sum(stream.cancelled for stream in core.streams) == 2)
    unary.cancel()
    await within(20, lambda: all(stream.cancelled for stream in core.streams))


async def test_the_deadline_shrinks_on_its_way_to_the_core(stub: Any, core: Any) -> None:
    await stub.Generate(ask(), timeout=30)
    assert 0 < core.streams[0].choice.deadline_seconds < 30.5  # gRPC rounds up


# ---- vllm.Inference


@pytest.fixture
def vllm_stub(channel: grpc.aio.Channel) -> Any:
    return vllm_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]


def asked(**fields: Any) -> vllm.GenerateRequest:
    return vllm.GenerateRequest(**({"text": "x"} | fields))


async def test_vllm_clients_get_the_same_answer_whole_and_streamed(vllm_stub: Any, stub: Any, core: Any) -> None:
    wanted = vllm.ResponseOptions(
        output_token_ids=True, output_logprobs=True, output_candidates=vllm.CandidateTokens(top_n=2)
    )
    request = asked(response=wanted, sampling=vllm.RandomSampling(seed=5), request_id="v1")
    answer = await vllm_stub.Generate(request)
    tokens = [*b"hello world", 257]
    assert (answer.prompt_info.num_prompt_tokens, answer.outputs.text) == (1, "hello world")
    assert (list(answer.outputs.token_ids), answer.outputs.num_tokens) == (tokens, 12)
    assert list(answer.outputs.logprobs) == [-0.5] * 12 and list(answer.outputs.ranks) == [1] * 11 + [0]
    assert [each.rank for each in answer.outputs.candidate_tokens[0].tokens] == [1, 2]
    finish = answer.outputs.finish_info
    assert (finish.finish_reason, finish.num_output_tokens, finish.eos_token_id) == (vllm.FinishInfo.STOP, 12, 257)
    parts = [part async for part in vllm_stub.GenerateStream(request)]
    assert [part.HasField("prompt_info") for part in parts] == [True] + [False] * (len(parts) - 1)
    assert "".join(part.outputs.text for part in parts) == "hello world"
    assert [token for part in parts for token in part.outputs.token_ids] == tokens
    assert parts[-1].outputs.finish_info == finish
    assert core.streams[0].choice.sampling.seed == 5 and core.streams[0].choice.request_id == "v1"


async def test_zeros_of_vllm_clients_mean_its_defaults(vllm_stub: Any, core: Any) -> None:
    answer = await vllm_stub.Generate(asked(sampling=vllm.RandomSampling(), stopping=vllm.StoppingCriteria()))
    first = core.streams[0].choice.sampling
    assert (first.max_tokens, first.top_p, first.top_k, first.temperature) == (20, 1.0, 0, 1.0)
    assert list(answer.outputs.token_ids) == [] and answer.outputs.text == "hello world"
    stopping = vllm.StoppingCriteria(max_new_tokens=5, stop_strings=["lo"], include_stop_strings=True)
    answer = await vllm_stub.Generate(asked(temperature=0.0, stopping=stopping))
    assert (answer.outputs.text, answer.outputs.finish_info.stop_string) == ("hello", "lo")
    assert core.streams[1].choice.sampling.temperature == 0.0
    short = await vllm_stub.Generate(asked(stopping=vllm.StoppingCriteria(max_new_tokens=2)))
    assert short.outputs.finish_info.finish_reason == vllm.FinishInfo.LENGTH
    assert short.outputs.finish_info.WhichOneof("stop_reason") is None


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (vllm.GenerateRequest(), "prompt"),
        (asked(lora_name="x"), "lora_name"),
        (asked(media=[vllm.MediaItem()]), "media"),
        (asked(decoding=vllm.DecodingParameters(presence_penalty=3)), "decoding.presence_penalty"),
        (asked(decoding=vllm.DecodingParameters(repetition_penalty=-1)), "decoding.repetition_penalty"),
        (asked(decoding=vllm.DecodingParameters(logit_bias={999: 2.0})), "decoding.logit_bias"),
        (asked(decoding=vllm.DecodingParameters(allowed_token_ids=[999])), "decoding.allowed_token_ids"),
        (asked(decoding=vllm.DecodingParameters(json="{")), "decoding.json"),
        (asked(decoding=vllm.DecodingParameters(json='{"type": "moon"}')), "decoding.json.type"),
        (asked(decoding=vllm.DecodingParameters(regex="(")), "decoding.regex"),
        (asked(decoding=vllm.DecodingParameters(choice=vllm.DecodingParameters.StringChoices())), "decoding.choice"),
        (
            asked(
                decoding=vllm.DecodingParameters(json_object=True),
                stopping=vllm.StoppingCriteria(ignore_eos=True),
            ),
            "stopping.ignore_eos",
        ),
        (
            asked(response=vllm.ResponseOptions(output_candidates=vllm.CandidateTokens(all=True))),
            "response.output_candidates.all",
        ),
        (
            asked(response=vllm.ResponseOptions(prompt_candidates=vllm.CandidateTokens(token_ids=vllm.TokenIds()))),
            "response.prompt_candidates.token_ids",
        ),
        (
            asked(response=vllm.ResponseOptions(prompt_candidates=vllm.CandidateTokens(top_n=21))),
            "response.prompt_candidates.top_n",
        ),
        (asked(kv=vllm.KVCacheParameters(kv_transfer_params={"a": 1})), "kv.kv_transfer_params"),
        (asked(session_id="x" * 257), "session_id"),
        (asked(sampling=vllm.RandomSampling(num_sequences=2)), "sampling.num_sequences"),
        (asked(sampling=vllm.RandomSampling(top_p=2.0)), "sampling.top_p"),
        (asked(temperature=-1.0), "temperature"),
        (asked(stopping=vllm.StoppingCriteria(max_new_tokens=2, min_new_tokens=3)), "stopping.min_new_tokens"),
        (asked(stopping=vllm.StoppingCriteria(stop_strings=[""])), "stopping.stop_strings"),
        (asked(token_ids=vllm.TokenIds(ids=[999])), "token_ids"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_what_vllm_clients_cannot_have_is_refused_in_their_names(
    vllm_stub: Any, core: Any, request_: Any, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await vllm_stub.Generate(request_)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details_of(refused.value)["BadRequest"].field_violations
    assert violation.field == field and core.streams == []


async def test_decoding_parameters_of_vllm_clients_reach_the_workers(vllm_stub: Any, core: Any) -> None:
    decoding = vllm.DecodingParameters(
        presence_penalty=0.5,
        frequency_penalty=0.25,
        repetition_penalty=1.5,
        logit_bias={7: 1.5},
        allowed_token_ids=[7, 104, 257],
        regex="[a-z ]+",
    )
    await vllm_stub.Generate(asked(decoding=decoding, session_id="s1"))
    await vllm_stub.Generate(asked(decoding=vllm.DecodingParameters()))
    first, second = (stream.choice for stream in core.streams)
    found = first.sampling.adjustments
    assert (found.presence_penalty, found.frequency_penalty, found.repetition_penalty) == (0.5, 0.25, 1.5)
    assert [(each.token, each.bias) for each in found.biases] == [(7, 1.5)] and found.allowed
    assert first.sampling.grammar and first.affinity == "s1"
    assert second.sampling.adjustments is None and second.sampling.grammar == "" and second.affinity == ""
    for kind in ({"json": '{"type": "integer"}'}, {"json_object": True}, {"grammar": 'start: "a"'}):
        await vllm_stub.Generate(asked(decoding=vllm.DecodingParameters(**kind)))
        assert core.streams[-1].choice.sampling.grammar
    choice = vllm.DecodingParameters(choice=vllm.DecodingParameters.StringChoices(choices=["a", "b"]))
    await vllm_stub.Generate(asked(decoding=choice))
    assert core.streams[-1].choice.sampling.grammar


async def test_vllm_clients_get_the_logprobs_and_the_ids_of_their_prompt(vllm_stub: Any, core: Any) -> None:
    wanted = vllm.ResponseOptions(
        prompt_token_ids=True, prompt_logprobs=True, prompt_candidates=vllm.CandidateTokens(top_n=2)
    )
    request = vllm.GenerateRequest(text="abcd", response=wanted)
    info = (await vllm_stub.Generate(request)).prompt_info
    assert (info.num_prompt_tokens, list(info.token_ids)) == (4, [*b"abcd"])
    assert math.isnan(info.logprobs[0]) and list(info.logprobs[1:]) == [-1.0, -2.0, -3.0]
    assert list(info.ranks) == [0, 7, 8, 9]
    assert [[(each.id, each.rank) for each in entry.tokens] for entry in info.candidate_tokens] == [
        [],
        *[[(0, 1), (1, 2)]] * 3,
    ]
    parts = [part async for part in vllm_stub.GenerateStream(request)]
    assert list(parts[0].prompt_info.ranks) == [0, 7, 8, 9] and not parts[1].HasField("prompt_info")
    only = vllm.GenerateRequest(text="abcd", response=vllm.ResponseOptions(prompt_logprobs=True))
    info = (await vllm_stub.Generate(only)).prompt_info
    assert len(info.logprobs) == 4 and not info.candidate_tokens and not info.token_ids


async def test_vllm_clients_cut_their_prompts_keep_special_tokens_and_pass_by_caches(vllm_stub: Any, core: Any) -> None:
    core.reply = lambda choice: [104, 258, 105]
    options = vllm.ResponseOptions(skip_special_tokens=False)
    kept = await vllm_stub.Generate(vllm.GenerateRequest(text="abcdef", truncate_prompt_tokens=2, response=options))
    bare = await vllm_stub.Generate(asked())
    assert (kept.outputs.text, bare.outputs.text) == ("h<|user|>i", "hi")
    for _ in range(2):
        await vllm_stub.Generate(asked(kv=vllm.KVCacheParameters(bypass_prefix_cache=True)))
    cut, plain, one, other = (stream.choice for stream in core.streams)
    assert cut.prompt == (*b"ef",)
    assert plain.salt == b"" and len({one.salt, other.salt, b""}) == 3


async def test_several_sequences_stream_to_vllm_clients(vllm_stub: Any, core: Any) -> None:
    core.reply = lambda choice: b"answer %d" % choice.sampling.choice
    texts = {0: "", 1: ""}
    async for part in vllm_stub.GenerateStream(asked(sampling=vllm.RandomSampling(num_sequences=2))):
        texts[part.outputs.index] += part.outputs.text
    assert texts == {0: "answer 0", 1: "answer 1"}


async def test_an_error_in_the_middle_reaches_both_kinds_of_call(stub: Any, core: Any, assets: Any) -> None:

    core.fail_at = {2: Unavailable("later")}
    for call in (stub.Generate(ask()), events_of(stub, ask())):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
