"""Real answers and errors have exactly the members that `/openapi.json` describes."""

import json
from typing import Any

import httpx2 as httpx
import pytest

from gateway.dialects.api import HttpApi
from gateway.dialects.endpoints.endpoint import BYTES
from gateway.dialects.endpoints.endpoint import TEXT as TEXT_ANSWER
from mesh.errors import Unavailable
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.described import (
    CHAT,
    COUNT,
    DESCRIBED,
    HI,
    MESSAGES,
    OLLAMA,
    RESPONSES,
    SGLANG,
    TEXT,
    TOKENS,
    check,
    client,
    closed,
    coded_event,
    line_schema,
    request_schema,
    schema_of,
    validator,
)

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
    (RESPONSES, {"input": "a", "receipt": True, "temperature": 0.5}),
    (MESSAGES, {"messages": HI}),
    (MESSAGES, {"messages": HI, "max_tokens": 3, "stop_sequences": ["wor"], "thinking": {"type": "enabled"}}),
    (MESSAGES, {"messages": [{"role": "user", "content": "call"}]}),
    (MESSAGES, {"messages": HI, "receipt": True, "temperature": 0.5}),
    (COUNT, {"messages": HI, "system": "b"}),
    (OLLAMA, {"messages": HI, "stream": False}),
    (OLLAMA, {"messages": [{"role": "user", "content": "call"}], "stream": False, "options": {"num_predict": 3}}),
    (OLLAMA, {"stream": False}),
    ("/api/generate", {"prompt": "a", "stream": False}),
    ("/api/embed", {"input": ["a", "b"]}),
    ("/api/show", {"model": "tiny"}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/tokenize", {"messages": HI}),
    ("/detokenize", {"tokens": [104]}),
    (TOKENS, {"token_ids": [1]}),
    (TOKENS, {"token_ids": [1, 2], "sampling_params": {"logprobs": 2, "prompt_logprobs": 1}, "return_token_ids": True}),
    (TOKENS, {"token_ids": [1, 2], "sampling_params": {"logprobs": 2, "n": 2, "stop": "wor"}, "output_mode": "text"}),
    (TOKENS, {"token_ids": [1], "receipt": True, "sampling_params": {"n": 2}}),
    (SGLANG, {"text": "a"}),
    (SGLANG, {"text": ["a", "b"], "receipt": True, "sampling_params": {"n": 2, "temperature": 0.5}}),
    (SGLANG, {"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 0}),
    (SGLANG, {"input_ids": [1], "return_logprob": True, "return_text_in_logprobs": True, "sampling_params": {"n": 2}}),
]


@pytest.mark.parametrize(("path", "body"), ANSWERS)
async def test_answers_have_exactly_the_members_that_are_described(
    api: HttpApi, described: Any, path: str, body: dict[str, Any]
) -> None:
    check(body, request_schema(described, path), described)
    async with client(api) as http:
        answer = await http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        strict = closed(described)
        check(answer.json(), schema_of(strict, path, 200), strict)
        if "prompt_logprobs" in json.dumps(body) or "logprob_start_len" in body:
            return  # prompt logprobs come with whole answers only
        text = (await http.post(path, json=body | {"stream": True})).text
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    if "application/x-ndjson" in content:
        for line in text.splitlines():
            check(json.loads(line), line_schema(strict, path), strict)
    if "text/event-stream" not in content:
        return
    coded, done = coded_event(strict, path)
    lines = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert (lines[-1] == "[DONE]") == done and len(lines) > 2
    events = validator(coded, strict)
    for line in lines[:-1] if done else lines:
        events.validate(json.loads(line))


async def test_pages_have_exactly_the_members_that_are_described(api: HttpApi, described: Any, core: FakeCore) -> None:
    strict = closed(described)
    async with client(api) as http:
        made = await http.post(TEXT, json={"prompt": "a", "request_id": "r", "receipt": True})
        paths = {"/v1/models/{name}": "/v1/models/tiny", "/debug/requests/{request_id}": "/debug/requests/r"}
        paths["/v1/receipts/{id}"] = f"/v1/receipts/{made.json()['receipt']['id']}"
        response = (await http.post(RESPONSES, json={"input": "a", "background": True})).json()["id"]
        paths["/v1/responses/{id}"] = f"/v1/responses/{response}"
        paths["/v1/responses/{id}/input_items"] = f"/v1/responses/{response}/input_items"
        form = {"file": ("a.jsonl", b"{}"), "purpose": (None, "batch")}
        file = (await http.post("/v1/files", files=form)).json()["id"]
        order = {"input_file_id": file, "endpoint": TEXT, "completion_window": "24h"}
        batch = (await http.post("/v1/batches", json=order)).json()["id"]
        paths |= {"/v1/files/{id}": f"/v1/files/{file}", "/v1/batches/{id}": f"/v1/batches/{batch}"}
        for row in DESCRIBED:
            if row.method == "get" and row.answer not in (TEXT_ANSWER, BYTES):
                answer = await http.get(paths.get(row.described_path, row.path))
                assert answer.status_code == 200
                check(answer.json(), schema_of(strict, row.described_path, 200, method="get"), strict)
        for method, path, id in (
            ("post", "/v1/responses/{id}/cancel", response),
            ("delete", "/v1/responses/{id}", response),
            ("post", "/v1/batches/{id}/cancel", batch),
            ("delete", "/v1/files/{id}", file),
        ):
            answer = await http.request(method, path.replace("{id}", id))
            assert answer.status_code == 200
            check(answer.json(), schema_of(strict, path, 200, method=method), strict)
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
        ("POST", OLLAMA, OLLAMA, {"messages": [{}]}),
        ("POST", OLLAMA, OLLAMA, {"messages": HI, "model": "other"}),
        ("GET", "/v1/models/other", "/v1/models/{name}", None),
        ("GET", "/tokenizer_info?model=other", "/tokenizer_info", None),
        ("GET", "/debug/requests?limit=x", "/debug/requests", None),
        ("GET", "/debug/pages?count=65537", "/debug/pages", None),
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
        answers = [await http.get("/nothing"), await http.get(TEXT)]
    assert [answer.headers["x-error-reason"] for answer in answers] == ["NOT_FOUND", "METHOD_NOT_ALLOWED"]
    assert all(answer.headers["x-should-retry"] == "false" for answer in answers)
    assert answers[1].headers["allow"] == "POST"


def _check_error(answer: httpx.Response, described: Any, path: str) -> None:
    (operation,) = described["paths"][path].values()
    response, strict = operation["responses"][str(answer.status_code)], closed(described)
    check(answer.json(), schema_of(strict, path, answer.status_code), strict)
    needed = {name for name, header in response["headers"].items() if header.get("required")}
    assert {"x-request-id", "x-error-reason", "x-should-retry"} == needed and needed <= set(answer.headers)
    if path != OLLAMA:  # its errors are texts
        assert answer.headers["x-error-reason"] == answer.json()["error"]["reason"]
    assert answer.headers["x-error-reason"] in response["description"]
