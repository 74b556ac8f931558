"""An answer over gRPC continues anywhere: with what is missing and no more, in the same numerics class."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from baton.client import Client, request_of
from baton.inference.v1 import inference_pb2 as pb
from cli.local_mesh.ports import free_address
from mesh.errors import Unavailable
from mesh.network.grpc_network import GrpcListening
from tests.unit.gateway.public_grpc import CLASS, ask, details_of, events_of, serve


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
    assert core.streams == []


async def test_a_stop_id_among_the_first_min_tokens_ended_nothing(stub: Any, core: Any) -> None:
    core.reply = b"h" + b"i" * 5
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(token_ids=[104, 105], min_tokens=2))
    request.emitted.add(index=0, token_ids=b"hi")
    assert list((await stub.Generate(request)).choices[0].token_ids) == [105]
    request.emitted[0].token_ids.append(105)
    assert list((await stub.Generate(request)).choices[0].token_ids) == []
    assert len(core.streams) == 1


async def test_a_choice_that_a_stop_string_ended_before_is_ended_again(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["lo"]))
    request.emitted.add(index=0, token_ids=b"hello")
    whole = await stub.Generate(request)
    assert whole.choices[0].finished.stop_string == "lo"
    assert (whole.choices[0].text, list(whole.choices[0].token_ids)) == ("", [])


async def test_a_stop_string_among_the_first_min_tokens_ended_nothing(stub: Any, core: Any) -> None:
    core.reply = b"stop, go on"
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["stop"], min_tokens=6))
    request.emitted.add(index=0, token_ids=b"stop, go")
    whole = await stub.Generate(request)
    assert (whole.choices[0].text, whole.choices[0].finished.stop_string) == (" on", "")
    request.stop.min_tokens = 3  # the string ends behind them
    assert (await stub.Generate(request)).choices[0].finished.stop_string == ""
    request.stop.min_tokens = 0
    assert (await stub.Generate(request)).choices[0].finished.stop_string == "stop"


async def test_a_stop_string_that_max_tokens_completed_is_the_reason(stub: Any, core: Any) -> None:
    core.reply = b"hello"
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["lo"], max_tokens=5))
    first = (await stub.Generate(request)).choices[0].finished
    request.emitted.add(index=0, token_ids=b"hello")
    again = (await stub.Generate(request)).choices[0].finished
    assert [(end.reason, end.stop_string) for end in (first, again)] == [(pb.FINISH_REASON_STOP, "lo")] * 2


async def test_a_continuation_in_another_class_is_refused_unless_allowed(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), numerics_class=pb.NumericsClass(name="x", fingerprint="beef"))
    request.emitted.add(index=0, token_ids=b"he")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request)
    assert details_of(refused.value)["ErrorInfo"].reason == "CLASS_UNAVAILABLE"
    assert "beef" in str(refused.value.details()) and "f00d" in str(refused.value.details())
    request.allow_class_change = True
    assert (await stub.Generate(request)).choices[0].text == "llo world"


async def test_a_class_change_in_the_middle_is_sent_to_the_client(stub: Any, core: Any) -> None:
    submit = core.submit

    def changing(choice: Any) -> Any:
        stream = submit(choice)
        events = stream.events

        async def with_change() -> AsyncIterator[Any]:
            async for token in events():
                if token.position >= 5:
                    stream.numerics = "other fingerprint cafe"
                yield token

        stream.events = with_change
        return stream

    core.submit = changing
    whole = await stub.Generate(ask(allow_class_change=True))
    assert whole.started.numerics_class == CLASS
    assert [changed.fingerprint for changed in whole.finished.changed_to] == ["cafe"]
    events = await events_of(stub, ask(allow_class_change=True))
    named = [event.delta.position for event in events if event.delta.HasField("numerics_class")]
    assert named == [5]


async def test_the_client_continues_on_the_next_gateway(core: Any, assets: Any) -> None:
    core.reply = "one né two 漢字 three".encode()
    other = type(core)(reply=core.reply, fail_at={7: Unavailable("dying")})
    first, second = await serve(other, assets), await serve(core, assets)
    try:
        async with Client(first.address, second.address) as client:
            assert await client.generate_text("x", temperature=0.7, stop=["never"]) == "one né two 漢字 three"
            request = request_of("x", n=2, max_tokens=9)
            events = [event async for event in client.stream(request)]
        assert core.streams[0].choice.sampling.seed == other.streams[0].choice.sampling.seed
        assert len(core.streams[0].choice.emitted) > 0
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
    async with Client(server.address, server.address, patience_seconds=0.3) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.generate_text("x", temperature=-1.0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        core.fail_at = {2: Unavailable("dying")}
        with pytest.raises(grpc.aio.AioRpcError):
            await client.generate_text("x")
        assert await client.models() == ["tiny"]
        assert await client.count_tokens("four") == 4


async def test_the_client_waits_for_a_gateway_that_comes_back_and_continues(core: Any, assets: Any) -> None:
    core.reply = "one né two 漢字 three".encode()
    dying = type(core)(reply=core.reply, fail_at={6: Unavailable("dying")})
    first = await serve(dying, assets)
    async with Client(first.address) as client:
        parts, back = list[str](), None
        async for text in client.stream_text("x", timeout_seconds=60, temperature=0.7):
            parts.append(text)
            if back is None:
                await first.close()
                await asyncio.sleep(0.3)  # nothing listens: the client tries, waits, and tries again
                back = await serve(core, assets, grpc_address=first.address)
        assert back is not None
        await back.close()
    assert "".join(parts) == "one né two 漢字 three"
    assert core.streams[0].choice.sampling.seed == dying.streams[0].choice.sampling.seed
    assert 0 < len(core.streams[0].choice.emitted) <= 6


async def test_the_client_gives_up_within_its_time_when_no_gateway_comes_back() -> None:
    address = free_address()
    began = asyncio.get_running_loop().time()
    async with Client(address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.generate_text("x", timeout_seconds=1.0)
    assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    assert asyncio.get_running_loop().time() - began < 20  # its patience alone would be 30 s


def test_the_client_names_an_address_that_lacks_brackets() -> None:
    with pytest.raises(ValueError, match=r"'::1:50051' needs brackets"):
        Client("::1:50051")


async def test_a_choice_that_is_continued_twice_is_refused_by_its_field(stub: Any, core: Any) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4))
    for tokens in (b"he", b"hel"):
        request.emitted.add(index=0, token_ids=tokens)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request)
    (violation,) = details_of(refused.value)["BadRequest"].field_violations
    assert violation.field == "emitted[1].index" and core.streams == []
    del request.emitted[1]
    assert (await stub.Generate(request)).choices[0].text == "llo world"


async def test_emitted_tokens_need_a_seed_only_where_tokens_are_sampled(stub: Any, core: Any) -> None:
    request = ask(emitted=[pb.Emitted(index=0, token_ids=b"he")])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(request)
    (violation,) = details_of(refused.value)["BadRequest"].field_violations
    assert violation.field == "sampling.seed"
    request.sampling.temperature = 0.0
    assert (await stub.Generate(request)).choices[0].text == "llo world"


async def test_a_stop_string_that_ended_a_complete_choice_is_its_reason(stub: Any, core: Any) -> None:
    stop = pb.StopOptions(strings=["lo"], max_tokens=5)
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=stop)
    request.emitted.add(index=0, token_ids=b"hello")
    finished = (await stub.Generate(request)).choices[0].finished
    assert (finished.reason, finished.stop_string) == (pb.FINISH_REASON_STOP, "lo")
    assert core.streams == []


@pytest.mark.parametrize(("emitted", "rest"), [(b"hello", b" world"), (b"hello wor", b"ld")])
async def test_a_stop_string_inside_the_first_min_tokens_does_not_end_a_continued_answer(
    stub: Any, core: Any, emitted: bytes, rest: bytes
) -> None:
    request = ask(sampling=pb.SamplingOptions(seed=4), stop=pb.StopOptions(strings=["lo", "ell"], min_tokens=5))
    request.emitted.add(index=0, token_ids=emitted)
    assert bytes((await stub.Generate(request)).choices[0].token_ids[:-1]) == rest
    request.stop.min_tokens = 3  # negative control: the tokens of the string come later
    finished = (await stub.Generate(request)).choices[0].finished
    assert finished.stop_string == "lo"


async def test_a_class_of_a_megabyte_is_refused_and_not_repeated(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(ask(numerics_class=pb.NumericsClass(name="x" * 1_000_000, fingerprint="beef")))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "numerics_class.name must have 1 to 256 characters"
