"""Penalties, biases and bans on their way from a client to the core, over both front doors."""

from dataclasses import replace
from typing import Any

import grpc
import openai
import pytest

from baton.inference.v1 import inference_pb2 as pb
from gateway.prompts.assets import Assets, Defaults
from gateway.validation.adjustments import AdjustmentFields, find_adjustments
from gateway.validation.fields import Fields
from mesh.messages.jobs import Adjustments, TokenBias, TokenSequence
from tests.unit.gateway.public_grpc import ask

HI: Any = [{"role": "user", "content": "hi"}]
FIELDS: dict[str, Any] = {
    "frequency_penalty": 0.5,
    "presence_penalty": -0.25,
    "repetition_penalty": 1.25,
    "logit_bias": {"104": -100, "5": 1.5, "6": 0},
    "bad_words": ["no", " no", "x"],
    "allowed_token_ids": [9, 5, 5, 104],
}
WORDS = tuple(TokenSequence(tuple(word)) for word in (b"no", b" no", b"x", b" x"))
EXPECTED = Adjustments(
    biases=(TokenBias(104, -100.0), TokenBias(5, 1.5)),
    repetition_penalty=1.25,
    frequency_penalty=0.5,
    presence_penalty=-0.25,
    allowed=sum(1 << token for token in (5, 9, 104)).to_bytes(33, "little"),
    bad_words=WORDS,
)


def reached(core: Any) -> Any:
    return core.streams[-1].choice.sampling


async def test_every_field_reaches_the_core_from_both_endpoints(client: openai.AsyncOpenAI, core: Any) -> None:
    await client.chat.completions.create(model="tiny", messages=HI, extra_body=FIELDS)
    assert reached(core).adjustments == EXPECTED
    await client.completions.create(model="tiny", prompt="x", extra_body=FIELDS)
    assert reached(core).adjustments == EXPECTED


async def test_every_field_reaches_the_core_over_grpc(stub: Any, core: Any) -> None:
    fields = FIELDS | {"logit_bias": {104: -100, 5: 1.5}, "allowed_token_ids": pb.TokenIds(ids=[9, 5, 104])}
    await stub.Generate(ask(sampling=pb.SamplingOptions(**fields)))
    assert reached(core).adjustments == EXPECTED


async def test_neutral_and_absent_fields_leave_the_logits_alone(client: openai.AsyncOpenAI, core: Any) -> None:
    neutral: dict[str, Any] = {
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "logit_bias": {"5": 0},
        "bad_words": [],
        "allowed_token_ids": list(range(261)),
    }
    for fields in ({}, neutral, dict.fromkeys(FIELDS)):
        await client.completions.create(model="tiny", prompt="x", extra_body=fields)
        assert reached(core).adjustments is None


async def test_the_models_folder_may_adjust_logits_too(assets: Assets) -> None:
    defaults = Defaults(repetition_penalty=1.1, no_repeat_ngram_size=3, suppress_tokens=(7, 900))
    model = replace(assets, defaults=defaults)
    found = await find_adjustments(AdjustmentFields(), Fields({}), model)
    assert found == Adjustments(repetition_penalty=1.1, no_repeat_ngram=3, suppressed_ids=(7,))
    assert await find_adjustments(AdjustmentFields(), Fields({}), assets) is None


@pytest.mark.parametrize("name", [*FIELDS])
async def test_workers_that_do_not_adjust_logits_refuse_by_the_fields_name(
    client: openai.AsyncOpenAI, core: Any, name: str
) -> None:
    core.adjusts_logits = False
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="tiny", prompt="x", extra_body={name: FIELDS[name]})
    assert refused.value.param == name and core.streams == []
    await client.completions.create(model="tiny", prompt="x")  # negative control
    assert len(core.streams) == 1


async def test_a_tiny_temperature_is_greedy(client: openai.AsyncOpenAI, core: Any) -> None:
    for temperature, served in ((1e-38, 0.0), (9e-6, 0.0), (1e-5, 1e-5), (0.7, 0.7)):
        await client.completions.create(model="tiny", prompt="x", temperature=temperature)
        assert reached(core).temperature == served


async def test_the_best_choices_and_routing_keys_work_over_grpc_too(stub: Any, core: Any) -> None:
    core.reply = lambda choice: b"choice %d" % choice.sampling.choice
    request = ask(sampling=pb.SamplingOptions(best_of=3, n=2, seed=1), affinity_key="chat")
    answer = await stub.Generate(request)
    assert [(choice.index, choice.text) for choice in answer.choices] == [(0, "choice 0"), (1, "choice 1")]
    assert len(core.streams) == 3 and {stream.choice.affinity for stream in core.streams} == {"chat"}
    request.emitted.add(index=0, token_ids=[5])
    with pytest.raises(grpc.aio.AioRpcError, match=r"sampling\.best_of"):
        await stub.Generate(request)
