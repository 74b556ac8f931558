"""SGLang's `/generate`: its fields, batches, streams of answers so far, and what a request may cost."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from gateway.dialects.openai.large import is_costly
from gateway.prompts.assets import Assets, load_assets
from tests.harness.longest_pass import LongestPass, best_of
from tests.harness.served_api import served_api
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.native.calls import HELLO, SGLANG, TOKENS, frames, refused, whole


async def test_sglangs_answer_has_text_ids_and_its_reason_to_end(url: str, core: FakeCore) -> None:
    answer = await whole(url, SGLANG, text="ab", rid="mine", sampling_params={"temperature": 0})
    assert (answer["text"], answer["output_ids"]) == ("hello world", HELLO) and "index" not in answer
    meta = answer["meta_info"]
    assert (meta["id"], meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == ("mine", 2, 12, 3)
    assert meta["finish_reason"] == {"type": "stop", "matched": 257} and meta["e2e_latency"] == 0.5
    assert core.streams[0].choice.sampling.max_tokens == 128  # SGLang's default
    cut = await whole(url, SGLANG, input_ids=[1], sampling_params={"max_new_tokens": 5})
    assert cut["text"] == "hello" and cut["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    stopped = await whole(url, SGLANG, text="a", sampling_params={"stop": "wo", "no_stop_trim": True})
    assert stopped["text"] == "hello wo" and stopped["meta_info"]["finish_reason"]["matched"] == "wo"


async def test_the_default_length_gives_way_to_the_context(url: str, core: FakeCore) -> None:
    await whole(url, SGLANG, input_ids=[1] * 500)
    assert core.streams[0].choice.sampling.max_tokens == 12


@pytest.mark.parametrize(
    "prompts", [{"text": ["a", "b"]}, {"input_ids": [[97], [98]]}, {"text": ["a"]}, {"input_ids": [[97]]}]
)
async def test_a_batch_has_an_answer_for_each_prompt_and_choice(url: str, core: FakeCore, prompts: Any) -> None:
    core.reply = lambda choice: bytes(choice.prompt).upper() + b"%d" % choice.sampling.choice
    count = len(next(iter(prompts.values())))
    answers = await whole(url, SGLANG, **prompts, rid="r", sampling_params={"n": 2})
    assert [each["text"] for each in answers] == ["A0", "A1", "B0", "B1"][: 2 * count]
    assert [each["meta_info"]["id"] for each in answers] == [f"r_{index}" for index in range(2 * count)]
    last: dict[int, str] = {}
    for frame in await frames(url, SGLANG, **prompts, sampling_params={"n": 2}):
        last[frame["index"]] = frame["text"]
    assert [last[index] for index in sorted(last)] == [each["text"] for each in answers]


async def test_each_event_of_a_stream_holds_the_answer_so_far(url: str, core: FakeCore) -> None:
    core.reply = 'né "漢" 😀'.encode()
    body = {"text": "x", "return_logprob": True, "top_logprobs_num": 2, "sampling_params": {"temperature": 0}}
    answer, parts = await whole(url, SGLANG, **body), await frames(url, SGLANG, **body)
    texts = [part["text"] for part in parts]
    assert all(after.startswith(before) for before, after in pairwise(texts))
    assert (parts[-1]["text"], parts[-1]["output_ids"]) == (answer["text"], answer["output_ids"])
    assert answer["text"] == 'né "漢" 😀'
    assert [part["meta_info"]["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["meta_info"]["output_token_logprobs"] == answer["meta_info"]["output_token_logprobs"]
    for part in parts:
        meta = part["meta_info"]
        counts = {len(part["output_ids"]), meta["completion_tokens"], len(meta["output_token_logprobs"])}
        assert counts == {len(meta["output_top_logprobs"])}


async def test_a_long_stream_of_answers_so_far_stays_affordable(core: FakeCore, folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 1 << 16}
    (folder / "config.json").write_text(json.dumps(config))
    core.reply = b"a" * 4000
    async with served_api(core, load_assets(folder, "tiny")) as address:
        body = {"text": "x", "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
        parts = await frames(f"http://{address}", SGLANG, **body)
    assert 256 < len(parts) < 1100 and len(parts[-1]["output_ids"]) == 4000
    assert [len(part["text"]) for part in parts[:100]] == list(range(1, 101))


async def test_logprobs_of_the_prompt_begin_where_the_client_says(url: str, core: FakeCore) -> None:
    body = {"input_ids": [5, 6, 7, 8], "return_logprob": True, "sampling_params": {"max_new_tokens": 1}}
    meta = (await whole(url, SGLANG, **body, logprob_start_len=0, top_logprobs_num=1))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 5, None], [-1.0, 6, None], [-2.0, 7, None], [-3.0, 8, None]]
    assert meta["input_top_logprobs"][:2] == [None, [[-0.25, 0, None]]] and len(meta["output_top_logprobs"]) == 1
    meta = (await whole(url, SGLANG, **body, logprob_start_len=2, return_text_in_logprobs=True))["meta_info"]
    assert meta["input_token_logprobs"] == [[None, 7, "\x07"], [-3.0, 8, "\b"]] and "input_top_logprobs" not in meta
    meta = (await whole(url, SGLANG, **body))["meta_info"]
    assert meta["input_token_logprobs"] == [] and meta["output_token_logprobs"] == [[-0.5, 104, None]]
    assert "output_token_logprobs" not in (await whole(url, SGLANG, text="x"))["meta_info"]


@pytest.mark.parametrize(
    ("body", "param", "what"),
    [
        ({"text": None}, "text", "missing"),
        ({"input_ids": [1]}, "text", "exclude"),
        ({"text": []}, "text", "not empty"),
        ({"text": ""}, "text", "empty"),
        ({"text": "x" * 600}, "text", "maximum context length is 512"),
        ({"rid": "two words"}, "rid", "printable"),
        ({"sampling_params": {"max_new_tokens": -1}}, "sampling_params.max_new_tokens", "at least 0"),
        ({"sampling_params": {"min_new_tokens": 129}}, "sampling_params.min_new_tokens", "128"),
        ({"sampling_params": {"json_schema": "{"}}, "sampling_params.json_schema", "JSON"),
        ({"sampling_params": {"regex": "("}}, "sampling_params.regex", ""),
        ({"sampling_params": {"json_schema": "{}", "regex": "a"}}, "sampling_params", "json and regex"),
        ({"sampling_params": {"ebnf": "root ::= a"}}, "sampling_params.ebnf", "null"),
        ({"sampling_params": {"max_tokens": 1}}, "sampling_params.max_tokens", "unknown field"),
        ({"sampling_params": [{}]}, "sampling_params", "Expected"),
        ({"return_logprob": True, "top_logprobs_num": 21}, "top_logprobs_num", "0 to 20"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "-1"),
        ({"return_logprob": True, "logprob_start_len": 0, "stream": True}, "logprob_start_len", "stream"),
        ({"return_hidden_states": True}, "return_hidden_states", "not supported"),
        ({"lora_path": "a"}, "model", "'a' is not served"),
        ({"image_data": "a"}, "image_data", "null"),
        ({"model": "other"}, "model", "not served"),
    ],
)
async def test_what_sglangs_dialect_cannot_honour_is_refused_by_name(
    url: str, core: FakeCore, body: Any, param: str, what: str
) -> None:
    field, message = await refused(url, SGLANG, **({"text": "x"} | body))
    assert field == param and what in message, message
    assert core.streams == []


async def test_what_benchmarks_and_evaluations_send_is_taken(url: str) -> None:
    served = {"sampling_params": {"temperature": 0.0, "max_new_tokens": 4, "ignore_eos": True}, "lora_path": ""}
    bench = {"text": "x", **served, "return_logprob": False, "return_routed_experts": False, "logprob_start_len": -1}
    assert (await frames(url, SGLANG, **bench, image_data=None))[-1]["meta_info"]["completion_tokens"] == 4
    scored = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}, "logprob_start_len": 0}
    answers = await whole(url, SGLANG, input_ids=[[5, 6]], **scored, top_logprobs_num=1, return_logprob=True)
    assert [entry[0] for entry in answers[0]["meta_info"]["input_token_logprobs"]] == [None, -1.0]


# ---- what one request may cost


async def test_large_bodies_of_the_dialects_are_parsed_elsewhere(assets: Assets, core: FakeCore) -> None:
    """A bias is no token id: a hundred thousand of them in a nested object are refused like those of a body."""
    many = {str(number): 0.1 for number in range(120_000)}
    body = json.dumps({"text": "x", "sampling_params": {"logit_bias": many}}).encode()
    ids = json.dumps({"tokens": [1] * 600_000}).encode()
    assert is_costly(body) and is_costly(ids)
    async with (
        served_api(core, assets) as address,
        httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client,
    ):
        head = {"content-type": "application/json"}
        await client.post("/detokenize", content=ids, headers=head)  # starts the process

        async def attempt() -> tuple[tuple[httpx.Response, httpx.Response], float]:
            with LongestPass() as passes:
                biases = await client.post(SGLANG, content=body, headers=head)
                tokens = await client.post("/detokenize", content=ids, headers=head)
                await asyncio.sleep(0)
            return (biases, tokens), passes.seconds

        biases, tokens = await best_of(attempt, 0.05)
    assert biases.json()["error"]["param"] == "sampling_params" and "values" in biases.json()["error"]["message"]
    assert tokens.json()["error"]["reason"] == "CONTEXT_TOO_LONG"


async def test_dialects_end_their_streams_when_the_client_leaves(url: str, core: FakeCore) -> None:
    core.ends = False
    for path, body in ((SGLANG, {"text": "x"}), (TOKENS, {"token_ids": [1]})):
        async with (
            httpx.AsyncClient(base_url=url, timeout=None) as client,
            client.stream("POST", path, json=body | {"stream": True}) as s,
        ):
            async for _ in s.aiter_lines():
                break
        async with asyncio.timeout(20):
            await core.streams[-1].gone.wait()
        assert core.streams[-1].cancelled
