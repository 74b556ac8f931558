"""Reads the description of the API, and checks values against it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import jsonschema

from gateway.dialects.api import HttpApi
from gateway.dialects.endpoints.table import ENDPOINTS
from tests.harness.socketless import SocketlessHttp

FOR_PEOPLE = {"/", "/docs", "/openapi.json"}  # and the page /ui, which a gateway has besides
HI = [{"role": "user", "content": "hi"}]
CHAT, TEXT, TOKENS, SGLANG = "/v1/chat/completions", "/v1/completions", "/inference/v1/generate", "/generate"
RESPONSES, MESSAGES, COUNT = "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"
OLLAMA = "/api/chat"
DESCRIBED = [row for row in ENDPOINTS if row.summary]
ALL_PATHS = [row.described_path for row in DESCRIBED]
OPEN = {"TokenizerInfo"}  # answers that may have more members


def client(api: HttpApi) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=SocketlessHttp(api.app), base_url="http://127.0.0.1", timeout=None)


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
    """ValidationError where the value is not as described."""
    validator(schema, described).validate(value)


def validator(schema: Any, described: Any) -> jsonschema.Draft202012Validator:
    """That the schemas are schemas is a test of its own."""
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "components": described["components"]}
    return jsonschema.Draft202012Validator(whole)


def schema_of(described: Any, path: str, status: int, kind: str = "application/json", method: str = "") -> Any:
    """`method`: of a path that has several."""
    (operation,) = (one for name, one in described["paths"][path].items() if name == (method or name))
    return operation["responses"][str(status)]["content"][kind]["schema"]


def coded_event(described: Any, path: str) -> tuple[Any, bool]:
    """The schema of an event's JSON, and whether [DONE] follows the last one."""
    data = schema_of(described, path, 200, "text/event-stream")["properties"]["data"]
    return (data["anyOf"][0]["contentSchema"], True) if "anyOf" in data else (data["contentSchema"], False)


def line_schema(described: Any, path: str) -> Any:
    """The schema of a line, where a stream is lines of JSON."""
    return schema_of(described, path, 200, "application/x-ndjson")


def request_schema(described: Any, path: str) -> Any:
    return described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
