"""The dialects of vLLM and SGLang over HTTP: what their clients send and get, and what is refused by name."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from gateway.openai.large import is_costly
from gateway.text.assets import Assets, load_assets
from tests.harness.longest_pass import LongestPass
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.emitting_core import http_of

TOKENS, SGLANG = "/inference/v1/generate", "/generate"
HELLO = [*b"hello world", 257]


async def post(url: str, path: str, **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(base_url=url) as client:
        return await client.post(path, json=body)


async def whole(url: str, path: str, **body: Any) -> Any:
    answer = await post(url, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def frames(url: str, path: str, **body: Any) -> list[Any]:
    text = (await post(url, path, **body, stream=True)).text
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


async def refused(url: str, path: str, **body: Any) -> tuple[str, str]:
    """The named field, and the message."""
    answer = await post(url, path, **body)
    assert answer.status_code in (400, 404), answer.text
    return answer.json()["error"]["param"], answer.json()["error"]["message"]


# ---- the tokenizer


async def test_a_prompt_becomes_its_tokens_and_tokens_their_text(url: str) -> None:
    answer = await whole(url, "/tokenize", prompt="hi<|end|>", return_token_strs=True)
    assert answer == {"count": 3, "max_model_len": 512, "tokens": [104, 105, 257], "token_strs": ["h", "i", "<|end|>"]}
    assert (await whole(url, "/tokenize", model="tiny", prompt="é"))["token_strs"] is None
    assert await whole(url, "/detokenize", tokens=[104, 105, 257]) == {"prompt": "hi<|end|>"}
    assert await whole(url, "/detokenize", tokens=[]) == {"prompt": ""}


async def test_a_chat_becomes_the_tokens_that_its_answer_would_see(url: str, core: FakeCore) -> None:
    messages = [{"role": "user", "content": "hi <|end|>"}]
    for more in ({}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"shout": True}}):
        answer = await whole(url, "/tokenize", messages=messages, **more)
        await whole(url, "/v1/chat/completions", messages=messages, **more)
        assert tuple(answer["tokens"]) == core.streams[-1].choice.prompt
    open_end = [*messages, {"role": "assistant", "content": "so"}]
    answer = await whole(url, "/tokenize", messages=open_end, continue_final_message=True)
    assert answer["tokens"][-2:] == [*b"so"]


@pytest.mark.parametrize(
    ("path", "body", "param", "what"),
    [
        ("/tokenize", {}, "prompt", "missing"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt", "exclude"),
        ("/tokenize", {"messages": []}, "messages", "at least one"),
        ("/tokenize", {"prompt": "a", "chat_template": "x"}, "chat_template", "messages"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model", "not served"),
        ("/tokenize", {"prompt": "a" * 100_000}, "prompt", "maximum context length is 512"),
        ("/tokenize", {"prompt": ["a"]}, "prompt", "Expected"),
        ("/detokenize", {}, "tokens", "missing"),
        ("/detokenize", {"tokens": [261]}, "tokens", "0 to 260"),
        ("/detokenize", {"tokens": [-1]}, "tokens", "0 to 260"),
        ("/detokenize", {"tokens": [1] * 513}, "tokens", "512"),
    ],
)
async def test_what_cannot_be_tokenized_is_refused_by_name(
    url: str, core: FakeCore, path: str, body: Any, param: str, what: str
) -> None:
    field, message = await refused(url, path, **body)
    assert field == param and what in message
    assert core.errors == ["UNKNOWN_MODEL" if param == "model" else core.errors[0]] and core.streams == []


async def test_the_tokenizers_configuration_has_texts_template_and_end_of_sequence(url: str, folder: Path) -> None:
    async with httpx.AsyncClient(base_url=url) as client:
        info = (await client.get("/tokenizer_info")).json()
        unknown = await client.get("/tokenizer_info?model=other")
    assert info["eos_token"] == "<|end|>" and info["bos_token"] == "<|begin|>"
    assert info["tokenizer_class"] and "<|assistant|>" in info["chat_template"]
    assert unknown.status_code == 404 and unknown.headers["x-error-reason"] == "UNKNOWN_MODEL"


async def test_the_end_of_sequence_is_named_even_where_the_file_does_not(core: FakeCore, folder: Path) -> None:
    config = {"bos_token": {"content": "<|begin|>", "lstrip": False}, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    async with http_of(core, load_assets(folder, "tiny")) as address, httpx.AsyncClient() as client:
        info = (await client.get(f"http://{address}/tokenizer_info")).json()
    assert info["eos_token"] == "<|end|>" and info["bos_token"] == "<|begin|>"


# ---- vLLM: token ids in, token ids out


async def test_token_ids_are_answered_by_token_ids(url: str, core: FakeCore) -> None:
    answer = await whole(url, TOKENS, token_ids=[1, 2], request_id="mine", sampling_params={"n": 2, "seed": 3})
    assert answer["request_id"] == "mine" and answer["model"] == "tiny" and answer["output_mode"] == "tokens"
    assert [(c["index"], c["token_ids"], c["finish_reason"]) for c in answer["choices"]] == [
        (0, HELLO, "stop"),
        (1, HELLO, "stop"),
    ]
    assert all(choice["logprobs"] is None and "text" not in choice for choice in answer["choices"])
    assert answer["usage"]["prompt_tokens"] == 2 and answer["prompt_logprobs"] is None
    assert core.streams[0].choice.prompt == (1, 2) and core.streams[0].choice.sampling.seed == 3


async def test_streamed_token_ids_join_to_the_whole_answer(url: str) -> None:
    body = {"token_ids": [1, 2], "sampling_params": {"n": 2, "logprobs": 2}, "return_token_ids": True}
    answer = await whole(url, TOKENS, **body)
    parts = await frames(url, TOKENS, **body, stream_options={"include_usage": True})
    assert parts[0]["prompt_token_ids"] == answer["prompt_token_ids"] == [1, 2]
    assert parts[-1]["choices"] == [] and parts[-1]["usage"]["completion_tokens"] == 2 * len(HELLO)
    for index, choice in enumerate(answer["choices"]):
        own = [each for part in parts for each in part["choices"] if each["index"] == index]
        assert [token for each in own for token in each["token_ids"]] == choice["token_ids"] == HELLO
        logprobs = [entry for each in own if each["logprobs"] for entry in each["logprobs"]["content"]]
        assert logprobs == choice["logprobs"]["content"] and len(logprobs) == len(HELLO)
        assert [each["finish_reason"] for each in own][-1] == choice["finish_reason"] == "stop"
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert (first["token_id"], first["token"], first["logprob"], first["rank"]) == (104, "token_id:104", -0.5, 1)
    assert [top["token_id"] for top in first["top_logprobs"]] == [104, 105]


async def test_text_and_logprobs_of_the_prompt_come_along_on_request(url: str) -> None:
    sampling = {"logprobs": 1, "prompt_logprobs": 1, "stop": ["wor"], "max_tokens": 9}
    answer = await whole(url, TOKENS, token_ids=[1, 2, 3], output_mode="text", sampling_params=sampling)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("hello ", "wor")
    assert choice["logprobs"]["content"][0]["token"] == "h" and choice["logprobs"]["content"][0]["bytes"] == [104]
    assert answer["prompt_logprobs"][0] is None and answer["prompt_logprobs"][1]["2"]["logprob"] == -1.0


async def test_without_max_tokens_token_ids_may_fill_the_context(url: str, core: FakeCore) -> None:
    await whole(url, TOKENS, token_ids=[1, 2], sampling_params={"temperature": 0})
    assert core.streams[0].choice.sampling.max_tokens == 510


@pytest.mark.parametrize(
    ("body", "param", "what"),
    [
        ({"token_ids": None}, "token_ids", "missing"),
        ({"token_ids": []}, "token_ids", "empty"),
        ({"token_ids": [261]}, "token_ids", "0 to 260"),
        ({"token_ids": [1] * 512}, "token_ids", "maximum context length is 512"),
        ({"sampling_params": {"max_tokens": 600}}, "token_ids", "sampling_params.max_tokens"),
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature", "0 to 100"),
        ({"sampling_params": {"n": 300}}, "sampling_params.n", "300 choices"),
        ({"sampling_params": {"logprobs": -1}}, "sampling_params.logprobs", "0 to 20"),
        ({"sampling_params": {"logit_bias": {"9" * 9: 1}}}, "sampling_params.logit_bias", "0 to 260"),
        ({"sampling_params": {"logit_bias": {"1": 101}}}, "sampling_params.logit_bias", "-100 to 100"),
        ({"sampling_params": {"structured_outputs": {"regex": "("}}}, "sampling_params.structured_outputs.regex", ""),
        ({"sampling_params": {"skip_reading_prefix_cache": True}}, "sampling_params.skip_reading_prefix_cache", "not"),
        ({"sampling_params": {"extra_args": {"a": 1}}}, "sampling_params.extra_args", "null"),
        ({"sampling_params": {"best_of": 2}}, "sampling_params.best_of", "unknown field"),
        ({"features": {"mm_hashes": {}}}, "features", "null"),
        ({"max_tokens": 3}, "max_tokens", "no field of this endpoint"),
        ({"output_mode": "derender"}, "output_mode", "Invalid"),
        ({"output_mode": "text", "sampling_params": {"detokenize": False}}, "sampling_params.detokenize", "text"),
        ({"stream": True, "sampling_params": {"prompt_logprobs": 1}}, "sampling_params.prompt_logprobs", "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream = true"),
    ],
)
async def test_what_tokens_in_cannot_honour_is_refused_by_name(
    url: str, core: FakeCore, body: Any, param: str, what: str
) -> None:
    field, message = await refused(url, TOKENS, **({"token_ids": [1, 2]} | body))
    assert field == param and what in message, message
    assert core.streams == []


async def test_fields_that_change_nothing_are_named(url: str) -> None:
    sampling = {"detokenize": False, "output_kind": 2, "flat_logprobs": False}
    answer = await post(url, TOKENS, token_ids=[1], sampling_params=sampling, kv_transfer_params={"a": 1}, odd=1)
    assert answer.headers["x-baton-ignored"] == (
        "kv_transfer_params, odd, sampling_params.flat_logprobs, sampling_params.output_kind"
    )
    answer = await post(url, SGLANG, text="a", sampling_params={"stream_interval": 4}, no_logs=True, top_logprobs_num=2)
    assert answer.headers["x-baton-ignored"] == "no_logs, sampling_params.stream_interval, top_logprobs_num"


# ---- SGLang


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
    async with http_of(core, load_assets(folder, "tiny")) as address:
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
        ({"lora_path": "a"}, "lora_path", "Invalid"),
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
    async with http_of(core, assets) as address, httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
        head = {"content-type": "application/json"}
        await client.post("/detokenize", content=ids, headers=head)  # starts the process
        with LongestPass() as passes:
            biases = await client.post(SGLANG, content=body, headers=head)
            tokens = await client.post("/detokenize", content=ids, headers=head)
            await asyncio.sleep(0)
    assert biases.json()["error"]["param"] == "sampling_params" and "values" in biases.json()["error"]["message"]
    assert tokens.json()["error"]["reason"] == "CONTEXT_TOO_LONG"
    assert passes.seconds < 0.05


async def test_dialects_end_their_streams_when_the_client_leaves(url: str, core: FakeCore) -> None:
    core.ends = False
    for path, body in ((SGLANG, {"text": "x"}), (TOKENS, {"token_ids": [1]})):
        async with (
            httpx.AsyncClient(base_url=url) as client,
            client.stream("POST", path, json=body | {"stream": True}) as s,
        ):
            async for _ in s.aiter_lines():
                break
        async with asyncio.timeout(20):
            await core.streams[-1].gone.wait()
        assert core.streams[-1].cancelled
