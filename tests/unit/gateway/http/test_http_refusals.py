"""Whatever cannot be honoured is refused before anything runs: nested errors that name the field and the remedy."""

import socket
from random import Random
from typing import Any

import httpx2 as httpx
import openai
import pytest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.prompts.assets import Assets
from mesh.errors import Unavailable
from mesh.network.grpc_network import AddressError
from tests.harness.socketless import SocketlessHttp
from tests.unit.gateway.http_calls import post, with_chat, with_text

PAGE = Route("/ui", lambda request: Response("the page"), methods=["GET"])
METRICS = Route("/metrics", lambda request: Response("metrics"), methods=["GET"])


async def front(core: Any, assets: Assets, also: list[BaseRoute], accept: str) -> httpx.Response:
    """The answer of a gateway with these pages at its root."""
    api = HttpApi(core, assets, random=Random(7), clock=lambda: 1.0, also=also)
    async with httpx.AsyncClient(transport=SocketlessHttp(api.app), base_url="http://gateway", timeout=None) as http:
        return await http.get("/", headers={"accept": accept})


async def test_a_browser_at_the_root_goes_to_the_page_and_a_program_reads_what_there_is(
    core: Any, assets: Assets
) -> None:
    browser = "text/html,application/xhtml+xml,*/*;q=0.8"
    moved = await front(core, assets, [PAGE, METRICS], browser)
    assert (moved.status_code, moved.headers["location"]) == (307, "/ui")
    program = await front(core, assets, [PAGE, METRICS], "*/*")
    assert program.status_code == 200 and program.text == "Baton is running; try /ui, /v1/models, /health, /metrics\n"
    without = await front(core, assets, [], browser)
    assert without.status_code == 200 and without.text.endswith("try /v1/models, /health\n")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        # wrong types
        (with_text(temperature="hot"), "temperature"),
        (with_text(n=True), "n"),
        (with_text(n=1.5), "n"),
        (with_text(max_tokens="9"), "max_tokens"),
        (with_text(stop=[1]), "stop[0]"),
        (with_text(stream="yes"), "stream"),
        (with_text(prompt=3), "prompt"),
        (with_text(prompt=["a", 1]), "prompt"),
        (with_text(prompt=None), "prompt"),
        (with_text(prompt={"text": "x"}), "prompt"),
        (with_chat(messages="hi"), "messages"),
        (with_chat(messages=["hi"]), "messages[0]"),
        (with_chat(messages=[{"content": "hi"}]), "messages[0].role"),
        (with_chat(messages=[{"role": "user"}]), "messages[0].content"),
        (with_chat(messages=[{"role": "<|user|>", "content": "hi"}]), "messages[0].role"),
        (with_chat(messages=[{"role": "End", "content": "hi"}]), "messages[0].role"),
        (with_chat(messages=[{"role": "", "content": "hi"}]), "messages[0].role"),
        (with_chat(messages=[{"role": "user", "content": 3}]), "messages[0].content"),
        (
            with_chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
            "messages[0].content[0].type",
        ),
        (with_chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
        (with_chat(stream=True, stream_options={"speed": 1}), "stream_options.speed"),
        (with_chat(chat_template_kwargs=[]), "chat_template_kwargs"),
        (with_chat(chat_template_kwargs={"messages": []}), "chat_template_kwargs"),
        # out of range
        (with_text(prompt=""), "prompt"),
        (with_text(prompt=[]), "prompt"),
        (with_text(prompt=[[]]), "prompt"),
        (with_text(prompt=[261]), "prompt"),
        (with_text(prompt=[-1]), "prompt"),
        (with_text(prompt="x" * 512), "prompt"),
        (with_text(max_tokens=512), "prompt"),
        (with_chat(messages=[]), "messages"),
        (with_chat(messages=[{"role": "user", "content": "x" * 600}]), "messages"),
        (with_text(max_tokens=-1), "max_tokens"),
        (with_chat(max_completion_tokens=-1), "max_completion_tokens"),
        (with_text(max_completion_tokens=-1), "max_completion_tokens"),
        (with_text(max_tokens=3, min_tokens=4), "min_tokens"),
        (with_text(n=0), "n"),
        (with_text(n=129), "n"),
        (with_text(temperature=-0.1), "temperature"),
        (with_text(top_p=0), "top_p"),
        (with_text(top_p=1.1), "top_p"),
        (with_text(top_k=-2), "top_k"),
        (with_text(min_p=2), "min_p"),
        (with_text(seed=2**64), "seed"),
        (with_text(logprobs=21), "logprobs"),
        (with_chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (with_chat(top_logprobs=2), "top_logprobs"),
        (with_text(logprob_token_ids=[5]), "logprob_token_ids"),
        (with_chat(logprob_token_ids=[5]), "logprob_token_ids"),
        (with_text(logprobs=0, logprob_token_ids=[261]), "logprob_token_ids"),
        (with_text(logprobs=0, logprob_token_ids=[5, 5]), "logprob_token_ids"),
        (with_text(logprobs=0, logprob_token_ids=[*range(129)]), "logprob_token_ids"),
        (with_text(logprobs=0, logprob_token_ids=[5], use_beam_search=True), "logprob_token_ids"),
        (with_text(stop=""), "stop"),
        (with_text(stop=["a"] * 17), "stop"),
        (with_text(stop_token_ids=[300]), "stop_token_ids"),
        (with_text(stream_options={"include_usage": True}), "stream_options"),
        (with_text(echo=True, logprobs=21), "logprobs"),
        (with_text(cache_salt="x" * 129), "cache_salt"),
        (with_text(request_id="two words"), "request_id"),
        (with_text(priority=601), "priority"),
        (with_chat(priority=-601), "priority"),
        (with_text(priority="high"), "priority"),
        # penalties, biases, bans
        (with_chat(frequency_penalty=2.5), "frequency_penalty"),
        (with_chat(presence_penalty=-2.5), "presence_penalty"),
        (with_chat(repetition_penalty=0), "repetition_penalty"),
        (with_chat(logit_bias={"x": 1}), "logit_bias"),
        (with_chat(logit_bias={"-5": 1}), "logit_bias"),
        (with_chat(logit_bias={"261": 1}), "logit_bias"),
        (with_chat(logit_bias={"5": 101}), "logit_bias"),
        (with_chat(logit_bias={str(token): 1 for token in range(1025)}), "logit_bias"),
        (with_text(bad_words=["x" * 30] * 100 + ["y" * 30 + str(i) for i in range(100)]), "bad_words"),
        (with_text(allowed_token_ids=[5] * 262), "allowed_token_ids"),
        (with_text(bad_words=["a"] * 257), "bad_words"),
        (with_text(bad_words=[" "]), "bad_words"),
        (with_text(allowed_token_ids=[]), "allowed_token_ids"),
        (with_text(allowed_token_ids=[261]), "allowed_token_ids"),
        (with_text(allowed_token_ids=[97], bad_words=["a"]), "allowed_token_ids"),
        (with_text(allowed_token_ids=[257], min_tokens=1), "allowed_token_ids"),
        (with_text(allowed_token_ids=[97, 257], structured_outputs={"regex": "b"}), "allowed_token_ids"),
        # choices, prompts, routing
        (with_text(n=3, best_of=2), "best_of"),
        (with_text(best_of=129), "best_of"),
        (with_text(best_of=2, stream=True), "best_of"),
        (with_text(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
        (with_text(truncate_prompt_tokens=-2), "truncate_prompt_tokens"),
        (with_chat(truncation_side="middle"), "truncation_side"),
        (with_chat(prompt_cache_key="x" * 257), "prompt_cache_key"),
        (with_chat(session_id="x" * 257), "session_id"),
        # known, not supported
        (with_chat(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),  # the template has no place
        (with_text(tools=[{"type": "function", "function": {"name": "f"}}]), "tools"),
        (with_chat(response_format={"type": "xml"}), "response_format.type"),
        (
            with_chat(response_format={"type": "json_schema", "json_schema": {"name": 1, "schema": {}}}),
            "response_format.json_schema.name",
        ),
        (with_text(suffix="end"), "suffix"),
        # removed, unknown
        (with_chat(guided_json={"type": "object"}), "guided_json"),
        (with_chat(functions=[]), "functions"),
        (with_text(messages=[]), "messages"),
        # no such model
        (with_text(model="other"), "model"),
        (with_chat(model="other"), "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_a_wrong_field_is_named_and_nothing_runs(url: str, core: Any, request_: Any, field: str) -> None:
    answer = await post(url, *request_)
    error = answer.json()["error"]
    assert answer.status_code == (404 if field == "model" else 400), error
    assert error["param"] == field
    assert field.rpartition(".")[2].partition("[")[0] in error["message"]
    codes = {"model": "model_not_found"} | (
        {field: "context_length_exceeded"} if "context length" in error["message"] else {}
    )
    assert error["code"] == codes.get(field, answer.status_code)
    assert answer.headers["x-should-retry"] == "false"
    assert core.streams == []


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "best_of": 1, "suffix": None},
        {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"top_k": -1, "stop": None, "seed": None, "stream_options": None, "tools": None},
    ],
)
async def test_neutral_values_and_hints_are_accepted(url: str, fields: dict[str, Any]) -> None:
    assert (await post(url, *with_text(**fields))).status_code == 200


async def test_a_field_that_no_endpoint_knows_is_named_in_a_header(url: str) -> None:
    answer = await post(url, *with_text(max_token=3, user="me", verbosity="low", store=False, **{"a b\r\n": 1}))
    assert answer.status_code == 200
    assert answer.headers["x-baton-ignored"] == "max_token, user, verbosity, store, 1 more"
    assert "x-baton-ignored" not in (await post(url, *with_text(max_tokens=3))).headers
    many = await post(url, *with_text(**{f"field_{n}": n for n in range(5000)}))
    assert many.headers["x-baton-ignored"].endswith("field_15, 4984 more")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": "x"}, "logit_bias: Expected an object or null, got a string"),
        ({"max_tokens": "3"}, "max_tokens: Expected a whole number or null, got a string"),
        ({"temperature": [1]}, "temperature: Expected a number or null, got a list"),
        ({"stream": 1}, "stream: Expected true or false or null, got a whole number"),
    ],
)
async def test_a_field_of_the_wrong_kind_is_told_in_words(url: str, fields: dict[str, Any], message: str) -> None:
    answer = await post(url, *with_text(**fields))
    assert answer.status_code == 400 and answer.json()["error"]["message"] == message


async def test_with_strict_fields_an_unknown_field_is_answered_with_the_nearest_name(url: str, core: Any) -> None:
    object.__setattr__(core.limits, "strict_fields", True)
    assert (await post(url, *with_text(user="me"))).status_code == 200, "hints are known"
    answer = await post(url, *with_text(max_token=3))
    assert "did you mean max_tokens?" in answer.json()["error"]["message"]


async def test_unknown_paths_and_methods_are_nested_errors_too(url: str) -> None:
    async with httpx.AsyncClient(timeout=None) as http:
        missing = await http.get(f"{url}/v1/nothing")
        wrong = await http.get(f"{url}/v1/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert missing.json()["error"]["code"] == 404
    assert wrong.json()["error"]["code"] == 405


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (with_text(max_tokens=100), "max_tokens"),
        (with_chat(max_completion_tokens=100), "max_completion_tokens"),
        (with_text(prompt="x" * 64), "prompt"),
        (with_chat(messages=[{"role": "user", "content": "x" * 64}]), "messages"),
    ],
)
async def test_a_request_that_no_pool_can_hold_is_refused_by_field(
    url: str, core: Any, request_: Any, field: str
) -> None:
    core.largest_pool_tokens = 64
    answer = await post(url, *request_)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["reason"]) == (400, field, "POOL_TOO_SMALL")
    assert "64" in error["message"] and "pool_bytes" in error["message"] and core.streams == []
    assert answer.headers["x-should-retry"] == "false"
    core.largest_pool_tokens = 640
    assert (await post(url, *request_)).status_code == 200


async def test_a_refused_second_prompt_cancels_the_first(url: str, core: Any) -> None:
    submit = core.submit

    def once(choice: Any) -> Any:
        if core.streams:
            raise Unavailable("enough")
        return submit(choice)

    core.submit = once
    assert (await post(url, *with_text(prompt=["a", "b"]))).status_code == 503
    assert core.streams[0].cancelled


async def test_the_sdk_raises_its_own_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(model="tiny", prompt="x", temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        await client.completions.create(model="other", prompt="x")


async def test_a_template_that_refuses_names_the_messages(url: str, assets: Any, core: Any) -> None:
    from gateway.text.chat import ChatTemplate

    object.__setattr__(assets, "template", ChatTemplate("{{ raise_exception('no system role') }}", {}))
    answer = await post(url, *with_chat())
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "messages"
    assert "no system role" in answer.json()["error"]["message"]
    object.__setattr__(assets, "template", None)
    assert "no chat template" in (await post(url, *with_chat())).json()["error"]["message"]


async def test_a_port_in_use_is_an_error_that_names_the_address_and_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressError, match=f"http_address = '{address}'"):
            await serve_http(None, address)


async def test_the_line_of_a_refused_request_names_the_field(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "baton.request")
    await post(url, *with_text(temperature=-1))
    (line,) = [record for record in caplog.records if record.name == "baton.request"]
    assert vars(line)["field"] == "temperature" and "INVALID_REQUEST temperature" in line.getMessage()
