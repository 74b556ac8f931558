"""`vllm.Inference` on the public port: the clients of vLLM get the same answers as those of Baton."""

import math
from typing import Any

import grpc
import pytest

from baton.vllm.v1 import vllm_pb2 as vllm
from baton.vllm.v1 import vllm_pb2_grpc as vllm_grpc
from tests.unit.gateway.public_grpc import details_of


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


async def test_an_adapter_that_is_not_served_is_not_found_by_its_name(vllm_stub: Any, core: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="'x' is not served") as caught:
        await vllm_stub.Generate(asked(lora_name="x"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND and core.streams == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (vllm.GenerateRequest(), "prompt"),
        (asked(media=[vllm.MediaItem()]), "media"),
        (asked(decoding=vllm.DecodingParameters(presence_penalty=3)), "decoding.presence_penalty"),
        (asked(decoding=vllm.DecodingParameters(repetition_penalty=-1)), "decoding.repetition_penalty"),
        (asked(decoding=vllm.DecodingParameters(logit_bias={999: 2.0})), "decoding.logit_bias"),
        (asked(decoding=vllm.DecodingParameters(allowed_token_ids=[999])), "decoding.allowed_token_ids"),
        (asked(decoding=vllm.DecodingParameters(allowed_token_ids=[97], regex="b")), "decoding.allowed_token_ids"),
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
    )
    await vllm_stub.Generate(asked(decoding=decoding, session_id="s1"))
    await vllm_stub.Generate(asked(decoding=vllm.DecodingParameters()))
    first, second = (stream.choice for stream in core.streams)
    found = first.sampling.adjustments
    assert (found.presence_penalty, found.frequency_penalty, found.repetition_penalty) == (0.5, 0.25, 1.5)
    assert [(each.token, each.bias) for each in found.biases] == [(7, 1.5)] and found.allowed
    assert first.affinity == "s1"
    assert second.sampling.adjustments is None and second.sampling.grammar == "" and second.affinity == ""
    for kind in (
        {"regex": "[a-z ]+"},
        {"json": '{"type": "integer"}'},
        {"json_object": True},
        {"grammar": 'start: "a"'},
    ):
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
