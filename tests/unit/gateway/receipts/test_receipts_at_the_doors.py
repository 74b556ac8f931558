"""Receipts over HTTP and gRPC: signed and kept, carried by whole and streamed answers, equal for equal tokens."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from baton.inference.v1 import inference_pb2 as pb
from gateway.receipts.canonical import read_receipt
from gateway.receipts.receipts import Receipts
from gateway.receipts.shape import shaped
from gateway.receipts.signing import check_signature
from mesh.errors import InvalidRequest, WorkersDied

HI = [{"role": "user", "content": "hi"}]


async def chat(http: httpx2.AsyncClient, **fields: Any) -> Any:
    return await http.post("/v1/chat/completions", json={"messages": HI, "receipt": True} | fields)


async def complete(http: httpx2.AsyncClient, **fields: Any) -> Any:
    reply = await http.post("/v1/completions", json={"prompt": "x", "receipt": True} | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["receipt"]


def frames_of(text: str) -> list[Any]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def without_id(receipt: Any) -> Any:
    """The part that answers to the same request share, however they are sent."""
    own = ("id", "request_id", "answer", "signature")
    return {name: value for name, value in receipt.items() if name not in own}


async def test_a_whole_answer_carries_a_signed_receipt(http: httpx2.AsyncClient) -> None:
    reply = await chat(http, seed=2**64 - 1, temperature=0.7, max_tokens=50, request_id="r1")
    receipt = reply.json()["receipt"]
    check_signature(receipt)
    read = shaped(read_receipt(json.dumps(receipt).encode()))
    assert (
        receipt["format"] == "baton-receipt/1" and receipt["baton"] == "1.2.3" and receipt["created"] == 1_700_000_000
    )
    assert (receipt["request_id"], receipt["model"]) == ("r1", "tiny")
    assert receipt["numerics"] == [{"class": "path=fp32", "fingerprint": "f00d"}]
    assert reply.json()["system_fingerprint"] == "f00d"
    parameters = receipt["parameters"]
    assert (parameters["temperature"], parameters["max_tokens"], parameters["n"]) == ("0.7", 50, 1)
    (prompt,) = read.prompts
    (choice,) = prompt.choices
    assert (prompt.tokens, prompt.seed) == (5, "18446744073709551615")
    assert (choice.tokens, choice.given, choice.finish_reason, choice.spans) == (12, 0, "stop", [(0, 0)])
    assert "hello" not in json.dumps(receipt)


async def test_an_answer_carries_none_unless_its_request_wants_one(http: httpx2.AsyncClient) -> None:
    for fields in ({"receipt": False}, {"receipt": None}):
        reply = await chat(http, **fields)
        assert "receipt" not in reply.json() and "x-baton-receipt" not in reply.headers


async def test_streams_end_with_the_receipt_and_usage_comes_last(http: httpx2.AsyncClient) -> None:
    whole = (await chat(http, seed=1)).json()["receipt"]
    frames = frames_of((await chat(http, seed=1, stream=True)).text)
    assert frames[-1]["choices"] == [] and "usage" not in frames[-1]
    with_usage = frames_of((await chat(http, seed=1, stream=True, stream_options={"include_usage": True})).text)
    assert with_usage[-1]["usage"]["completion_tokens"] == 12
    for frame in (frames[-1], with_usage[-1]):
        check_signature(frame["receipt"])
        assert without_id(frame["receipt"]) == without_id(whole)
    assert sum("receipt" in frame for frame in [*frames, *with_usage]) == 2


async def test_completions_have_a_seed_for_each_prompt_and_all_choices(http: httpx2.AsyncClient) -> None:
    body = {"prompt": ["a", "bc"], "n": 2, "stop": ["wor"], "receipt": True}
    one = (await http.post("/v1/completions", json=body)).json()["receipt"]
    streamed = frames_of((await http.post("/v1/completions", json=body | {"stream": True})).text)[-1]["receipt"]
    for receipt in (one, streamed):
        check_signature(receipt)
        assert [prompt["tokens"] for prompt in receipt["prompts"]] == [1, 2]
        assert len({prompt["seed"] for prompt in receipt["prompts"]}) == 2
        for prompt in receipt["prompts"]:
            assert [(choice["index"], choice["tokens"]) for choice in prompt["choices"]] == [(0, 9), (1, 9)]
    hashes = [
        [[choice["hash"] for choice in prompt["choices"]] for prompt in receipt["prompts"]]
        for receipt in (one, streamed)
    ]
    assert hashes[0] == hashes[1] and hashes[0][0][0] != hashes[0][1][0]


async def test_both_doors_sign_the_same_record(http: httpx2.AsyncClient, rpc: Any) -> None:
    over_http = await complete(http, seed=3, temperature=0.5, max_tokens=9)
    sampling, stop = pb.SamplingOptions(seed=3, temperature=0.5), pb.StopOptions(max_tokens=9)
    answer = await rpc.Generate(pb.GenerateRequest(text="x", sampling=sampling, stop=stop, receipt=True))
    over_grpc = json.loads(answer.finished.receipt_json)
    check_signature(over_grpc, over_http["key"])
    assert without_id(over_grpc) == without_id(over_http)
    assert not (await rpc.Generate(pb.GenerateRequest(text="x"))).finished.HasField("receipt_json")


async def test_emitted_tokens_count_as_given_and_leave_the_hash_as_it_was(rpc: Any) -> None:
    request = pb.GenerateRequest(text="x", sampling=pb.SamplingOptions(seed=3), receipt=True)
    first = json.loads((await rpc.Generate(request)).finished.receipt_json)["prompts"][0]["choices"][0]
    request.emitted.add(index=0, token_ids=b"hello")
    later = json.loads((await rpc.Generate(request)).finished.receipt_json)["prompts"][0]["choices"][0]
    assert (first["given"], later["given"], later["spans"]) == (0, 5, [[5, 0]])
    assert (first["hash"], first["marks"], first["tokens"]) == (later["hash"], later["marks"], later["tokens"])


async def test_what_ran_nowhere_has_no_parameters(http: httpx2.AsyncClient) -> None:
    receipt = await complete(http, max_tokens=0)
    check_signature(receipt)
    assert receipt["parameters"] is None and receipt["prompts"][0]["choices"][0]["tokens"] == 0


async def test_a_receipt_can_be_fetched_by_its_id(http: httpx2.AsyncClient) -> None:
    reply = await chat(http)
    receipt = reply.json()["receipt"]
    assert reply.headers["x-baton-receipt"] == receipt["id"]
    fetched = await http.get(f"/v1/receipts/{receipt['id']}")
    assert fetched.status_code == 200 and fetched.json() == receipt
    assert fetched.headers["cache-control"] == "no-store"
    key = (await http.get("/v1/receipts/key")).json()
    assert key["key"] == receipt["key"] and key["algorithm"] == "ed25519" and "PRIVATE" not in key["pem"]


async def test_ids_are_long_random_and_every_other_one_is_missing_alike(http: httpx2.AsyncClient) -> None:
    ids = {(await complete(http, max_tokens=1))["id"] for _ in range(20)}
    assert len(ids) == 20 and all(len(id) == len("rcpt-") + 32 for id in ids)
    last = ids.pop()
    others = (last[:-1], last.upper(), "rcpt-" + "0" * 32, "%2e%2e%2fkey.pem", "key.pem", "x" * 5000, "%00", "ü")
    for other in others:
        reply = await http.get(f"/v1/receipts/{other}")
        assert (reply.status_code, reply.json()["error"]["reason"]) == (404, "NOT_FOUND"), other
    assert (await http.get("/v1/receipts/")).status_code == 404
    assert (await http.post(f"/v1/receipts/{last}")).status_code == 405


async def test_a_failed_answer_has_no_receipt(http: httpx2.AsyncClient, core: Any) -> None:
    core.fail_at = {3: WorkersDied("three workers died")}
    reply = await chat(http, stream=True)
    assert "error" in frames_of(reply.text)[-1] and not any("receipt" in frame for frame in frames_of(reply.text))
    assert (await http.get(f"/v1/receipts/{reply.headers['x-baton-receipt']}")).status_code == 404


async def test_without_a_key_the_request_is_refused_before_a_token(
    http: httpx2.AsyncClient, core: Any, tmp_path: Path
) -> None:
    (tmp_path / "receipts").write_text("in the way of the folder")
    reply = await chat(http)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, "receipt") and str(tmp_path) not in reply.text
    assert core.streams == [] and (await http.get("/v1/receipts/key")).status_code == 404
    assert (await chat(http, receipt=False)).status_code == 200


async def test_a_full_disk_loses_the_kept_receipt_and_not_the_answer(
    http: httpx2.AsyncClient, receipts: Receipts, tmp_path: Path
) -> None:
    await receipts.key()
    (tmp_path / "receipts" / "kept").write_text("in the way of the folder")
    reply = await chat(http)
    check_signature(reply.json()["receipt"])
    assert (await http.get(f"/v1/receipts/{reply.json()['receipt']['id']}")).status_code == 404


async def test_a_gateway_without_receipts_refuses_the_field(url: str, core: Any) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=None) as client:
        reply = await chat(client)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "receipt")


async def test_more_choices_than_a_receipt_may_have_are_refused(receipts: Receipts) -> None:
    many: Any = SimpleNamespace(choices=range(1000), complete=range(25))
    with pytest.raises(InvalidRequest, match="at most 1024 choices"):
        await receipts.begin([many], model="tiny")


@pytest.mark.parametrize(
    "fields", [{"name": "", "fingerprint": "f"}, {"name": "x", "fingerprint": "f" * 300}, {"name": "x"}]
)
async def test_a_wrong_numerics_class_is_refused_by_name(http: httpx2.AsyncClient, fields: Any) -> None:
    reply = await chat(http, numerics_class=fields)
    assert reply.status_code == 400 and "numerics_class" in reply.json()["error"]["param"]


async def test_the_wanted_numerics_class_reaches_the_core(http: httpx2.AsyncClient, core: Any) -> None:
    await chat(http, numerics_class={"name": "path=fp32", "fingerprint": "f00d"})
    assert core.streams[0].choice.numerics == "path=fp32 fingerprint f00d"
    reply = await chat(http, numerics_class={"name": "path=pairs", "fingerprint": "f00d"})
    assert reply.json()["error"]["reason"] == "CLASS_UNAVAILABLE"


DECIDING: list[dict[str, Any]] = [
    {"temperature": 0.71},
    {"top_p": 0.5},
    {"top_k": 3},
    {"min_p": 0.1},
    {"max_tokens": 11},
    {"min_tokens": 2},
    {"n": 2},
    {"best_of": 3},
    {"frequency_penalty": 0.5},
    {"presence_penalty": 0.5},
    {"repetition_penalty": 1.5},
    {"stop": ["zzz"]},
    {"stop_token_ids": [200]},
    {"ignore_eos": True},
    {"skip_special_tokens": False},
    {"logit_bias": {"7": 1}},
    {"bad_words": ["zzz"]},
    {"allowed_token_ids": [*range(256)]},
    {"structured_outputs": {"regex": "[a-z ]+"}},
]


async def test_each_parameter_that_decides_about_tokens_is_in_the_record(http: httpx2.AsyncClient) -> None:
    base = {"temperature": 0.7, "max_tokens": 12, "seed": 1}
    plain = (await complete(http, **base))["parameters"]
    for fields in DECIDING:
        one, other = [(await complete(http, **base | fields))["parameters"] for _ in range(2)]
        assert one == other, fields
        assert {name for name in one if one[name] != plain[name]} - {"eos_token_ids"} != set(), fields
        assert "zzz" not in json.dumps(one)


async def test_what_never_decides_about_tokens_is_not(http: httpx2.AsyncClient) -> None:
    base = {"temperature": 0.7, "max_tokens": 12, "seed": 1}
    plain = await complete(http, **base)
    for fields in ({"cache_salt": "secret"}, {"priority": 3}, {"session_id": "me"}, {"logprobs": 2}, {"user": "me"}):
        receipt = await complete(http, **base | fields)
        assert without_id(receipt) == without_id(plain)
        assert "secret" not in json.dumps(receipt)


async def test_many_receipts_at_once_are_all_kept(http: httpx2.AsyncClient) -> None:
    found = await asyncio.gather(*(complete(http, max_tokens=2) for _ in range(30)))
    for receipt in found:
        check_signature(receipt)
        assert (await http.get(f"/v1/receipts/{receipt['id']}")).json() == receipt
