"""Random requests made of the API's own description, some of them broken: every answer is described, none is an error
of ours. `make schemathesis` does the same with ten thousand cases over a mesh."""

import json
from pathlib import Path
from random import Random
from typing import Any

import httpx2 as httpx
import pytest

from gateway.dialects.api import HttpApi
from gateway.dialects.described.relevance import RerankRequest, ScoreRequest
from gateway.dialects.endpoints.kept import KEPT
from gateway.dialects.reference.document import document
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.roles import ROLE
from mesh.config.door_config import DoorConfig
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.dialects.reference.conftest import receipts_in
from tests.unit.gateway.dialects.reference.described import (
    DESCRIBED,
    check,
    client,
    closed,
    coded_event,
    line_schema,
    schema_of,
)

CASES = 60  # for each endpoint
ODD: list[Any] = [None, True, -1, 0, 1.5, 1e300, 2**70, "", "a b", "\x00é😀", [], [[]], {}, {"a": {"b": [1]}}]
# By pattern.
TEXTS = {
    "^[a-zA-Z0-9_.-]{1,64}$": "name-1",
    r"^[\x21-\x7e]{1,128}$": "id-1",
    "^[0-9]{1,19}$": "17",
    f"^{ROLE.pattern}$": "document 1",
}
COSTLY = {"chat_template"}  # each one is rendered in a process of its own


class SchemaValues:
    """Draws values that follow a schema of the document."""

    def __init__(self, described: Any, random: Random) -> None:
        self._schemas, self._random = described["components"]["schemas"], random

    def of(self, schema: Any, depth: int = 0) -> Any:
        random = self._random
        if "$ref" in schema:
            return self.of(self._schemas[schema["$ref"].rpartition("/")[2]], depth)
        if "enum" in schema or "const" in schema:
            return random.choice(schema.get("enum", [schema.get("const")]))
        if "anyOf" in schema and "properties" not in schema:
            rest = {name: value for name, value in schema.items() if name != "anyOf"}
            return self.of(rest | random.choice(schema["anyOf"]), depth)
        kind = schema.get("type", random.choice(["string", "integer", "boolean"]))
        kind = random.choice(kind) if isinstance(kind, list) else kind
        draw = {"object": self._object, "array": self._array, "string": self._text}
        if kind in draw:
            return draw[kind](schema, depth)
        low, high = schema.get("minimum", schema.get("exclusiveMinimum", -5)), schema.get("maximum", 40)
        some = random.choice([low, high, (low + high) / 2]) if kind == "number" else random.choice([low, high, low + 1])
        return {"boolean": random.random() < 0.5, "null": None}.get(kind, some)

    def _object(self, schema: Any, depth: int) -> Any:
        chosen = self._random.choice(schema["anyOf"]) if "anyOf" in schema else {}
        needed = {*schema.get("required", ()), *chosen.get("required", ())}
        left_out = {name for name, value in chosen.get("properties", {}).items() if value == {"type": "null"}} | COSTLY
        found = {}
        for name, value in schema.get("properties", {}).items():
            if name in needed or (name not in left_out and self._random.random() < 0.6 / (1 + 4 * (depth == 0))):
                found[name] = self.of(value, depth + 1)
        if isinstance(more := schema.get("additionalProperties"), dict) and "propertyNames" in schema:
            found |= {str(number): self.of(more, depth + 1) for number in range(self._random.randrange(3))}
        return found

    def _array(self, schema: Any, depth: int) -> Any:
        least, most = schema.get("minItems", 0), schema.get("maxItems", 4)
        count = min(most, max(least, self._random.randrange(4)))
        return [self.of(schema.get("items", {"type": "integer"}), depth + 1) for _ in range(count)]

    def _text(self, schema: Any, depth: int) -> str:
        if "pattern" in schema:
            return TEXTS[schema["pattern"]]
        least, most = schema.get("minLength", 0), schema.get("maxLength", 12)
        return "".join(self._random.choices('ab é😀{}"\\', k=self._random.randint(least, min(most, least + 9))))


@pytest.fixture
def assets(folder: Path) -> Assets:
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 64, "hidden_size": 2}
    (folder / "config.json").write_text(json.dumps(config))
    return load_assets(folder, "tiny")


# Files and batches need what other requests have made (tests/unit/gateway/dialects/batches), and prompts of pairs are
# longer than this model's context (tests/unit/gateway/dialects/openai/test_relevance.py).
ELSEWHERE = [*KEPT, *(row for row in DESCRIBED if row.body in (RerankRequest, ScoreRequest))]


@pytest.mark.parametrize(
    "row", [row for row in DESCRIBED if row.body is not None and row not in ELSEWHERE], ids=lambda row: row.path
)
async def test_requests_made_of_the_description_get_described_answers(
    core: FakeCore, assets: Assets, tmp_path: Path, row: Any
) -> None:
    random = Random(row.path)
    object.__setattr__(core.limits, "choices", 4)
    core.reply = lambda choice: b"n\xc3\xa9 ok" * 64  # ends at max_tokens, also without the model's own end
    described = document(DoorConfig(choices=4), assets, [each.path for each in DESCRIBED])
    values, strict = SchemaValues(described, random), closed(described)
    body = described["paths"][row.path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    statuses, receipts = dict[int, int](), receipts_in(tmp_path / "receipts")
    api = HttpApi(core, assets, random=Random(7), clock=lambda: 1.0, receipts=receipts)
    async with client(api) as http:
        for case in range(CASES):
            given = values.of(body)
            if case % 4 == 3:
                given[random.choice([*given, "temperature"])] = random.choice(ODD)
            answer = await http.post(row.path, json=given)
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (given, answer.text)
            _check(answer, strict, row.path)
    await api.aclose()
    assert statuses[200] >= CASES // 20, statuses  # else the description is far from what the API takes


def _check(answer: httpx.Response, strict: Any, path: str) -> None:
    kind = answer.headers["content-type"].partition(";")[0]
    if kind == "application/json":
        check(answer.json(), schema_of(strict, path, answer.status_code), strict)
        return
    if kind == "application/x-ndjson":
        for line in answer.text.splitlines():
            check(json.loads(line), line_schema(strict, path), strict)
        return
    coded, done = coded_event(strict, path)
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert (lines[-1] == "[DONE]") == done
    lines = lines[:-1] if done else lines
    for line in {*lines[:3], *lines[-3:]}:
        check(json.loads(line), coded, strict)
