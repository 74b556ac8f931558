"""`/openapi.json` names every endpoint and holds together; `/docs` shows it without any script."""

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import jsonschema
from starlette.routing import Route

from gateway.dialects.api import HttpApi
from gateway.dialects.reference.document import document
from gateway.dialects.reference.page import page
from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from tests.harness.longest_pass import LongestPass, best_of
from tests.unit.gateway.dialects.reference.described import ALL_PATHS, FOR_PEOPLE, client, walk


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


async def test_the_description_is_served_and_made_off_the_event_loop(new_api: Callable[[], HttpApi]) -> None:
    async def attempt() -> tuple[tuple[Any, Any], float]:
        async with client(new_api()) as http:  # one that has not made it yet
            with LongestPass() as passes:
                answers = await http.get("/openapi.json"), await http.get("/openapi.json/")
        return answers, passes.seconds

    answer, again = await best_of(attempt, 0.05)
    assert answer.headers["content-type"] == "application/json" and answer.content == again.content
    assert set(answer.json()["paths"]) == set(ALL_PATHS) - {"/metrics"}


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
