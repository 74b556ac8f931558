"""Embeddings over gRPC."""

from typing import Any

import grpc
import pytest

from baton.inference.v1 import inference_pb2 as pb
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.public_grpc import CLASS, details_of


def ids(*tokens: int) -> pb.EmbedInput:
    return pb.EmbedInput(token_ids=pb.TokenIds(ids=tokens))


async def test_texts_and_token_ids_become_vectors_in_order(stub: Any, core: FakeCore) -> None:
    request = pb.EmbedRequest(inputs=[pb.EmbedInput(text="Hi"), ids(7, 8, 9)], request_id="mine", cache_salt="s")
    answer = await stub.Embed(request)
    assert [list(each.values) for each in answer.embeddings] == [[2, 72], [3, 7]]
    assert answer.request_id == "mine" and answer.usage.prompt_tokens == 5 and answer.numerics_class == CLASS
    assert {examination.choice.salt for examination in core.examinations} != {b""}


async def test_the_calls_deadline_reaches_the_examination(stub: Any, core: FakeCore) -> None:
    await stub.Embed(pb.EmbedRequest(inputs=[ids(1)]), timeout=50)
    seconds = core.examinations[0].choice.deadline_seconds
    assert seconds is not None and 0 < seconds <= 51  # gRPC rounds a deadline up, and reads its clock seldom


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.EmbedRequest(), "inputs"),
        (pb.EmbedRequest(inputs=[pb.EmbedInput()]), "inputs[0]"),
        (pb.EmbedRequest(inputs=[ids(1), ids()]), "inputs[1]"),
        (pb.EmbedRequest(inputs=[ids(1)] * 2049), "inputs"),
        (pb.EmbedRequest(inputs=[ids(1)], dimensions=5), "dimensions"),
        (pb.EmbedRequest(inputs=[ids(1)], priority=601), "priority"),
        (pb.EmbedRequest(inputs=[ids(1)], cache_salt="s" * 129), "cache_salt"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_name(
    stub: Any, core: FakeCore, request_: pb.EmbedRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stub.Embed(request_)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(raised.value)["BadRequest"].field_violations[0].field == field
    assert core.examinations == []
