"""`/openapi.json` is true: real answers have exactly the described members, and the described limits are the real
ones. `/docs` shows it without any script."""

import hashlib
import json
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest
from starlette.routing import Route

from gateway.http.api import HttpApi
from gateway.observability.debug import debug_routes
from gateway.observability.traces import RecentTraces
from gateway.receipts.pages import receipt_routes
from gateway.receipts.receipts import Receipts
from gateway.reference.document import document
from gateway.reference.models import described_together
from gateway.reference.page import page
from gateway.reference.table import OPERATIONS
from gateway.text.assets import Assets
from mesh.door_config import DoorConfig
from mesh.errors import Unavailable
from mesh.telemetry import Silent
from tests.harness.longest_pass import LongestPass
from tests.unit.gateway.conftest import FakeCore

FOR_PEOPLE = {"/", "/docs", "/openapi.json"}  # and the page /ui, which a gateway has besides
HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT, TOKENS, SGLANG = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/generate"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
ALL_PATHS = [row.path for row in OPERATIONS]
OPEN = {"TokenizerInfo"}  # answers that may have more members


def receipts_in(folder: Path) -> Receipts:
    return Receipts(folder, random=Random(5), clock=lambda: 1.0, version="1", seconds=60.0, most_bytes=1 << 24)


@pytest.fixture
def api(core: FakeCore, assets: Assets, tmp_path: Path) -> HttpApi:
    traces, receipts = RecentTraces(Silent(), random=Random(1)), receipts_in(tmp_path / "receipts")
    pages = [*debug_routes(traces, lambda: 1.0), *receipt_routes(receipts)]
    return HttpApi(core, assets, random=Random(7), clock=lambda: 1.0, traces=traces, receipts=receipts, also=pages)


@pytest.fixture
def described(assets: Assets) -> Any:
    return document(DoorConfig(), assets, ALL_PATHS)


def client(api: HttpApi) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api.app), base_url="http://127.0.0.1")


def walk(value: Any) -> Iterator[Any]:
    """Every object within a JSON value, itself included."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(each)


def closed(described: Any) -> Any:
    """The same document, whose answers may have no further members."""
    copy = json.loads(json.dumps(described))
    for name, schema in copy["components"]["schemas"].items():
        for each in walk(schema):
            if each.get("type") == "object" and "properties" in each and name not in OPEN:
                each["additionalProperties"] = False
    return copy


def check(value: Any, schema: Any, described: Any) -> None:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "components": described["components"]}
    jsonschema.validate(value, whole, cls=jsonschema.Draft202012Validator)


def schema_of(described: Any, path: str, status: int, kind: str = "application/json") -> Any:
    (operation,) = described["paths"][path].values()
    return operation["responses"][str(status)]["content"][kind]["schema"]


def coded_event(described: Any, path: str) -> tuple[Any, bool]:
    """The schema of an event's JSON, and whether [DONE] follows the last one."""
    data = schema_of(described, path, 200, "text/event-stream")["properties"]["data"]
    return (data["anyOf"][0]["contentSchema"], True) if "anyOf" in data else (data["contentSchema"], False)


def test_every_endpoint_is_described_and_nothing_else(api: HttpApi, assets: Assets) -> None:
    served = {re.sub(r":\w+}", "}", route.path) for route in api.routes if isinstance(route, Route)} - FOR_PEOPLE
    assert served == set(ALL_PATHS) - {"/metrics"}  # which this gateway does not have
    assert set(document(DoorConfig(), assets, served)["paths"]) == served


def test_the_document_hangs_together(described: Any) -> None:
    assert described["openapi"] == "3.1.0" and described["info"]["version"]
    schemas = described["components"]["schemas"]
    names = {each["$ref"].removeprefix("#/components/schemas/") for each in walk(described) if "$ref" in each}
    assert names <= set(schemas)
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    operations = [operation for methods in described["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for path, methods in described["paths"].items():
        for operation in methods.values():
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path)) and operation["summary"]
            errors = {"400", "404", "408", "413", "415", "431", "500", "503"}
            assert "requestBody" not in operation or errors <= set(operation["responses"])


async def test_the_description_is_served_and_made_off_the_event_loop(api: HttpApi) -> None:
    async with client(api) as http:
        with LongestPass() as passes:
            answer, again = await http.get("/openapi.json"), await http.get("/openapi.json/")
    assert answer.headers["content-type"] == "application/json" and answer.content == again.content
    assert set(answer.json()["paths"]) == set(ALL_PATHS) - {"/metrics"} and passes.seconds < 0.05


LOGPROBS = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1, "return_token_ids": True}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
ANSWERS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": HI}),
    (CHAT, {"messages": HI, **LOGPROBS, "n": 2}),
    (CHAT, {"messages": HI, "max_tokens": 0}),
    (CHAT, {"messages": HI, "response_format": SCHEMA}),
    (CHAT, {"messages": HI, "receipt": True, "temperature": 0.5, "stop": "wor"}),
    (TEXT, {"prompt": "a"}),
    (TEXT, {"prompt": ["a", "b"], "receipt": True}),
    (TEXT, {"prompt": ["a", "b"], "logprobs": 2, "echo": True, "prompt_logprobs": 1, "return_token_ids": True}),
    (TEXT, {"prompt": [[1], [2, 3]], "n": 2, "stop": "wor", "logprobs": 0}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": [1, 2], "encoding_format": "base64"}),
    (RESPONSES, {"input": "a"}),
    (RESPONSES, {"input": HI, "top_logprobs": 2, "metadata": {"a": "b"}, "reasoning": {"effort": "low"}}),
    (RESPONSES, {"input": "a", "max_output_tokens": 3, "text": {"format": {"type": "text"}}}),
    (RESPONSES, {"input": "call"}),
    (MESSAGES, {"messages": HI}),
    (MESSAGES, {"messages": HI, "max_tokens": 3, "stop_sequences": ["wor"], "thinking": {"type": "enabled"}}),
    (MESSAGES, {"messages": [{"role": "user", "content": "call"}]}),
    (COUNT, {"messages": HI, "system": "b"}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/tokenize", {"messages": HI}),
    ("/detokenize", {"tokens": [104]}),
    (TOKENS, {"token_ids": [1]}),
    (TOKENS, {"token_ids": [1, 2], "sampling_params": {"logprobs": 2, "prompt_logprobs": 1}, "return_token_ids": True}),
    (TOKENS, {"token_ids": [1, 2], "sampling_params": {"logprobs": 2, "n": 2, "stop": "wor"}, "output_mode": "text"}),
    (SGLANG, {"text": "a"}),
    (SGLANG, {"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}),
    (SGLANG, {"input_ids": [1], "return_logprob": True, "return_text_in_logprobs": True, "sampling_params": {"n": 2}}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERS)
async def test_answers_have_exactly_the_members_that_are_described(
    api: HttpApi, described: Any, path: str, body: dict[str, Any]
) -> None:
    check(body, _body(described, path), described)
    async with client(api) as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        strict = closed(described)
        check(answer.json(), schema_of(strict, path, 200), strict)
        if "prompt_logprobs" in json.dumps(body) or "logprob_start_len" in body:
            return  # of whole answers only
        text = (await http.post(path, json=body | {"stream": True})).text
    event = described["paths"][path]["post"]["responses"]["200"]["content"].get("text/event-stream")
    if event is None:
        return
    coded, done = coded_event(strict, path)
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert (lines[-1] == "[DONE]") == done and len(lines) > 2
    for line in lines[:-1] if done else lines:
        check(json.loads(line), coded, strict)


async def test_pages_have_exactly_the_members_that_are_described(api: HttpApi, described: Any, core: FakeCore) -> None:
    strict = closed(described)
    async with client(api) as http:
        made = await http.post(TEXT, json={"prompt": "a", "request_id": "r", "receipt": True})
        paths = {"/v1/models/{name}": "/v1/models/tiny", "/debug/requests/{request_id}": "/debug/requests/r"}
        paths["/v1/receipts/{id}"] = f"/v1/receipts/{made.json()['receipt']['id']}"
        for row in OPERATIONS:
            if row.method == "get" and row.path != "/metrics":
                answer = await http.get(paths.get(row.path, row.path))
                assert answer.status_code == 200
                check(answer.json(), schema_of(strict, row.path, 200), strict)
        core.up = False
        sick = await http.get("/health")
    assert sick.status_code == 503
    check(sick.json(), schema_of(strict, "/health", 503), strict)


@pytest.mark.parametrize(
    ("method", "path", "described_as", "body"),
    [
        ("POST", TEXT, TEXT, {"prompt": 1}),
        ("POST", TEXT, TEXT, {"prompt": "a", "model": "other"}),
        ("POST", TEXT, TEXT, {"prompt": "a" * 600}),
        ("POST", SGLANG, SGLANG, {"text": "a", "sampling_params": {"n": 0}}),
        ("POST", "/tokenize", "/tokenize", {}),
        ("POST", RESPONSES, RESPONSES, {"input": []}),
        ("POST", RESPONSES, RESPONSES, {"input": "a", "model": "other"}),
        ("POST", MESSAGES, MESSAGES, {"messages": HI, "max_tokens": 0}),
        ("POST", MESSAGES, MESSAGES, {"messages": HI, "model": "other"}),
        ("POST", MESSAGES, MESSAGES, {"messages": HI, "thread": {}}),
        ("POST", COUNT, COUNT, {}),
        ("GET", "/v1/models/other", "/v1/models/{name}", None),
        ("GET", "/tokenizer_info?model=other", "/tokenizer_info", None),
        ("GET", "/debug/requests?limit=x", "/debug/requests", None),
        ("GET", "/debug/requests/other", "/debug/requests/{request_id}", None),
    ],
)
async def test_errors_have_the_described_form_and_headers(
    api: HttpApi, described: Any, method: str, path: str, described_as: str, body: Any
) -> None:
    async with client(api) as http:
        answer = await http.request(method, path, json=body)
    _check_error(answer, described, described_as)


async def test_an_overloaded_gateway_answers_as_described(api: HttpApi, described: Any, core: FakeCore) -> None:
    core.refuse = Unavailable("full")
    async with client(api) as http:
        answer = await http.post(TEXT, json={"prompt": "a"})
        stream = await http.post(TEXT, json={"prompt": "a", "stream": True})
    _check_error(answer, described, TEXT)
    _check_error(stream, described, TEXT)
    assert answer.status_code == 503 and "retry-after-ms" in answer.headers


async def test_paths_and_methods_that_nothing_serves_have_the_headers_of_errors_too(api: HttpApi) -> None:
    async with client(api) as http:
        answers = [await http.get("/nothing"), await http.get(TEXT), await http.get("/")]
    assert [answer.headers["x-error-reason"] for answer in answers] == ["NOT_FOUND", "METHOD_NOT_ALLOWED", "NOT_FOUND"]
    assert all(answer.headers["x-should-retry"] == "false" for answer in answers)
    assert answers[1].headers["allow"] == "POST"


# Field -> values that are taken, and values beyond the described limits.
LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "n": ([1, 128], [0, 129]),
    "max_tokens": ([0, 500], [-1, 513]),
    "min_tokens": ([0, 9], [-1]),
    "temperature": ([0, 100], [-0.1, 100.1]),
    "top_p": ([0.01, 1], [0, 1.1]),
    "top_k": ([-1, 0, 2**31 - 1], [-2, 2**31]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "repetition_penalty": ([0.01, 100], [0, 101]),
    "logit_bias": ([{"1": -100}, {}], [{"a": 1}, {"1": 101}]),
    "bad_words": ([["a"], []], [[""], ["a"] * 257]),
    "allowed_token_ids": ([[1, 257]], [[], [261], [-1]]),
    "seed": ([-(2**63), 2**64 - 1], [-(2**63) - 1, 2**64]),
    "stop": (["a", [], ["a"] * 16], ["", "a" * 1025, ["a"] * 17]),
    "stop_token_ids": ([[0, 260]], [[261], [-1]]),
    "truncate_prompt_tokens": ([1, -1], [0, -2]),
    "truncation_side": (["left", "right"], ["middle"]),
    "logprobs": ([0, 20], [-1, 21]),
    "prompt_logprobs": ([0, 20], [-1, 21]),
    "priority": ([-600, 600], [-601, 601]),
    "cache_salt": (["a" * 128], ["a" * 129]),
    "session_id": (["a" * 256], ["a" * 257]),
    "request_id": (["a"], ["", "a b", "a" * 129]),
    "receipt": ([True, False, None], [1]),
    "numerics_class": (
        [{"name": "path=fp32", "fingerprint": "f00d"}],
        [{"name": "", "fingerprint": "f"}, {"name": "a", "fingerprint": ""}, {"name": "a"}, {}],
    ),
    "prompt": ([[1, 2], ["a"], [[1], [2]]], [[], ["a", 1], [[1], "a"], [261]]),
    "response_format": ([{"type": "text"}], [{"type": "xml"}, {}]),
    "structured_outputs": ([{"regex": "a"}], [{"regexp": "a"}, {"choice": [""]}]),
}


@pytest.mark.parametrize("field", sorted(LIMITS))
async def test_described_limits_are_those_that_validation_has(
    api: HttpApi, described: Any, core: FakeCore, field: str
) -> None:
    body = _body(described, TEXT)
    good, bad = LIMITS[field]
    async with client(api) as http:
        for value in good:
            given = {"prompt": "a"} | {field: value}
            check(given, body, described)
            answer = await http.post(TEXT, json=given)
            assert answer.status_code == 200, (field, value, answer.text)
        for value in bad:
            given = {"prompt": "a"} | {field: value}
            with pytest.raises(jsonschema.ValidationError):
                check(given, body, described)
            answer = await http.post(TEXT, json=given)
            assert answer.status_code == 400, (field, value)


def test_limits_that_are_settings_are_described_as_they_are_set(assets: Assets) -> None:
    found = document(DoorConfig(choices=5, stop_strings=2), assets, ALL_PATHS)
    for path, body in ((TEXT, {"prompt": "a"}), (CHAT, {"messages": HI})):
        check(body | {"n": 5, "stop": ["a", "b"]}, _body(found, path), found)
        for wrong in ({"n": 6}, {"stop": ["a", "b", "c"]}):
            with pytest.raises(jsonschema.ValidationError):
                check(body | wrong, _body(found, path), found)


def test_several_models_are_described_together(assets: Assets) -> None:
    small = replace(assets, name="small", context_tokens=8, vocabulary=9)
    found = document(DoorConfig(), described_together([small, assets]), ALL_PATHS)
    assert f"small, {assets.name}" in found["info"]["summary"]
    check({"prompt": [assets.vocabulary - 1], "max_tokens": assets.context_tokens}, _body(found, TEXT), found)
    with pytest.raises(jsonschema.ValidationError):
        check({"prompt": [assets.vocabulary]}, _body(found, TEXT), found)


def test_errors_of_keys_are_described_where_keys_are_asked_for(assets: Assets, tmp_path: Path) -> None:
    without = document(DoorConfig(), assets, ALL_PATHS)
    found = document(DoorConfig(keys_file=tmp_path / "keys", keys_open_paths=("/health",)), assets, ALL_PATHS)
    for row in OPERATIONS:
        for one, guarded in ((without, False), (found, row.path != "/health")):
            operation = one["paths"][row.path][row.method]
            expected = {"401"} if guarded else set()
            expected |= {"429"} if row.method == "post" else set()  # OVERLOADED; with keys RATE_LIMITED too
            expected |= {"403"} if guarded and row.path.startswith(("/debug", "/metrics")) else set()
            assert {"401", "403", "429"} & set(operation["responses"]) == expected, row.path
            assert ("security" in operation) == guarded
    assert found["components"]["securitySchemes"] and "securitySchemes" not in without["components"]


def test_fields_without_effect_are_described_as_such(described: Any) -> None:
    chat = described["components"]["schemas"]["ChatRequest"]
    assert "x-baton-ignored" in chat["properties"]["user"]["description"]
    assert chat["required"] == ["messages"] and {"type": "null"} not in chat["properties"]["messages"]["anyOf"]


# ---- for people


async def test_the_page_shows_every_endpoint_and_has_no_script(api: HttpApi) -> None:
    async with client(api) as http:
        answer = await http.get("/docs")
    text, policy = answer.text, answer.headers["content-security-policy"]
    assert answer.headers["content-type"].startswith("text/html") and answer.headers["x-content-type-options"]
    for path in set(ALL_PATHS) - {"/metrics"}:
        assert f"<code>{path}</code>" in text
    assert "sampling_params.max_new_tokens" in text and "minimum -600" in text
    assert not re.search(r"<script|javascript:|<link|<img|<iframe|\son\w+=|https?://", text)
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ") and f"style-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy


def test_the_page_escapes_what_a_folder_may_hold(described: Any) -> None:
    described["info"]["summary"] = "<script>alert(1)</script>"
    assert b"<script" not in page(described) and b"&lt;script" in page(described)


def _body(described: Any, path: str) -> Any:
    return described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def _check_error(answer: httpx.Response, described: Any, path: str) -> None:
    (operation,) = described["paths"][path].values()
    response, strict = operation["responses"][str(answer.status_code)], closed(described)
    check(answer.json(), schema_of(strict, path, answer.status_code), strict)
    needed = {name for name, header in response["headers"].items() if header.get("required")}
    assert {"x-request-id", "x-error-reason", "x-should-retry"} == needed and needed <= set(answer.headers)
    assert answer.headers["x-error-reason"] == answer.json()["error"]["reason"]
    assert answer.headers["x-error-reason"] in response["description"]
