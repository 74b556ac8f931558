"""vLLM's endpoint of token ids: ids go in, ids come out."""

from typing import Any

import pytest

from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.native.calls import HELLO, SGLANG, TOKENS, frames, post, refused, whole


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


@pytest.mark.parametrize("tokens", [0, 1])
async def test_a_request_of_no_tokens_is_let_in_as_an_examination(url: str, core: FakeCore, tokens: int) -> None:
    """A full decode tier does not keep it out."""
    sampling = {"max_tokens": tokens, "prompt_logprobs": 1}
    await post(url, TOKENS, token_ids=[1, 2], sampling_params=sampling)
    assert core.admitted_as_examined is (tokens == 0)
    sampling = {"max_new_tokens": 1 - tokens}
    await post(url, SGLANG, text="x", sampling_params=sampling, return_logprob=True, logprob_start_len=0)
    assert core.admitted_as_examined is (tokens == 1)
