"""The limits in the description are those that validation and the settings have."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.dialects.api import HttpApi
from gateway.dialects.reference.document import document
from gateway.dialects.reference.models import described_together
from gateway.prompts.assets import Assets
from mesh.config.door_config import DoorConfig
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.described import (
    ALL_PATHS,
    CHAT,
    DESCRIBED,
    HI,
    TEXT,
    check,
    client,
    request_schema,
)

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
    body = request_schema(described, TEXT)
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
        check(body | {"n": 5, "stop": ["a", "b"]}, request_schema(found, path), found)
        for wrong in ({"n": 6}, {"stop": ["a", "b", "c"]}):
            with pytest.raises(jsonschema.ValidationError):
                check(body | wrong, request_schema(found, path), found)


async def test_a_gateway_that_lists_the_whole_vocabulary_describes_it(
    api: HttpApi, assets: Assets, core: FakeCore
) -> None:
    core.limits = DoorConfig(max_logprobs=-1)
    found = document(core.limits, assets, ALL_PATHS)
    async with client(api) as http:
        for value in (-1, 0, 21, assets.vocabulary):
            check({"prompt": "a", "logprobs": value}, request_schema(found, TEXT), found)
            answer = await http.post(TEXT, json={"prompt": "a", "logprobs": value, "max_tokens": 2})
            assert answer.status_code == 200, (value, answer.text)
        for value in (-2, assets.vocabulary + 1):
            with pytest.raises(jsonschema.ValidationError):
                check({"prompt": "a", "logprobs": value}, request_schema(found, TEXT), found)
            assert (await http.post(TEXT, json={"prompt": "a", "logprobs": value})).status_code == 400


def test_several_models_are_described_together(assets: Assets) -> None:
    small = replace(assets, name="small", context_tokens=8, vocabulary=9)
    found = document(DoorConfig(), described_together([small, assets]), ALL_PATHS)
    assert f"small, {assets.name}" in found["info"]["summary"]
    check({"prompt": [assets.vocabulary - 1], "max_tokens": assets.context_tokens}, request_schema(found, TEXT), found)
    with pytest.raises(jsonschema.ValidationError):
        check({"prompt": [assets.vocabulary]}, request_schema(found, TEXT), found)


def test_errors_of_keys_are_described_where_keys_are_asked_for(assets: Assets, tmp_path: Path) -> None:
    without = document(DoorConfig(), assets, ALL_PATHS)
    found = document(DoorConfig(keys_file=tmp_path / "keys", keys_open_paths=("/health",)), assets, ALL_PATHS)
    for row in DESCRIBED:
        for one, guarded in ((without, False), (found, row.path != "/health")):
            operation = one["paths"][row.described_path][row.method]
            expected = {"401"} if guarded else set()
            expected |= {"429"} if row.body is not None else set()  # OVERLOADED; with keys RATE_LIMITED too
            expected |= {"403"} if guarded and row.path.startswith(("/debug", "/metrics")) else set()
            assert {"401", "403", "429"} & set(operation["responses"]) == expected, row.path
            assert ("security" in operation) == guarded
    assert found["components"]["securitySchemes"] and "securitySchemes" not in without["components"]


def test_fields_without_effect_are_described_as_such(described: Any) -> None:
    chat = described["components"]["schemas"]["ChatRequest"]
    assert "x-baton-ignored" in chat["properties"]["user"]["description"]
    assert chat["required"] == ["messages"] and {"type": "null"} not in chat["properties"]["messages"]["anyOf"]
