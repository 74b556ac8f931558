"""Adapters over HTTP: chosen by name in every dialect, listed with their model, loaded and unloaded by operators."""

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway.attaching.adapter_names import ServedAdapter
from gateway.core.interface import ChosenAdapter, ModelFacts
from gateway.dialects.endpoints.paths import work_at
from gateway.prompts.assets import Assets
from gateway.tenants.keys import KeyFile
from gateway.tenants.tenants import Tenants, Work
from tests.harness.served_api import served_api
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.tenants.keys_files import key_of, write_keys

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
SQL = {"lora_name": "sql", "lora_path": "/adapters/sql"}
CHAT = [{"role": "user", "content": "hi"}]


@dataclass
class AdaptedCore(FakeCore):
    """Serves adapters by name, with the hash that stands for each."""

    adapters: dict[str, str] = field(default_factory=lambda: {"poet": "aa" * 32, "late": ""})

    def models(self) -> tuple[str, ...]:
        return ("tiny", *self.adapters)

    def root(self, name: str) -> str:
        return "tiny"

    def facts(self, name: str) -> ModelFacts:
        adapter = ChosenAdapter(name, self.adapters[name]) if name in self.adapters else None
        return replace(super().facts(name), adapter=adapter)

    async def load(self, root: str, name: str, folder: str, *, replace: bool = False) -> ServedAdapter:  # type: ignore[override]
        self.adapters[name] = "bb" * 32
        return ServedAdapter(root, name, "bb" * 32, folder)

    async def unload(self, name: str) -> ServedAdapter:
        return ServedAdapter("tiny", name, self.adapters.pop(name))


@pytest.fixture
def adapted() -> AdaptedCore:
    return AdaptedCore()


@asynccontextmanager
async def http_of(
    core: AdaptedCore, assets: Assets, tenants: Tenants | None = None
) -> AsyncIterator[httpx2.AsyncClient]:
    async with served_api(core, assets, tenants=tenants, loader=core) as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
            yield client


@pytest.fixture
async def http(adapted: AdaptedCore, assets: Assets) -> AsyncIterator[httpx2.AsyncClient]:
    adapted.limits = dataclasses.replace(adapted.limits, load_adapters=True)
    async with http_of(adapted, assets) as client:
        yield client


ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "poet", "prompt": "x"},
    "/v1/chat/completions": {"model": "poet", "messages": CHAT},
    "/v1/responses": {"model": "poet", "input": "x"},
    "/v1/messages": {"model": "poet", "messages": CHAT, "max_tokens": 3},
    "/api/chat": {"model": "poet", "messages": CHAT, "stream": False},
    "/inference/v1/generate": {"model": "poet", "token_ids": [5], "sampling_params": {"max_tokens": 2}},
    "/generate": {"lora_path": "poet", "text": "x"},
}


@pytest.mark.parametrize("path", ASKED)
async def test_every_dialect_chooses_an_adapter_by_its_name(
    path: str, http: httpx2.AsyncClient, adapted: AdaptedCore
) -> None:
    answer = await http.post(path, json=ASKED[path])
    assert answer.status_code == 200, answer.text
    (stream,) = adapted.streams
    assert stream.choice.adapter == ChosenAdapter("poet", "aa" * 32) and stream.choice.model == "tiny"
    plain = ASKED[path] | {"model": "tiny"}
    await http.post(path, json={name: value for name, value in plain.items() if name != "lora_path"})
    assert adapted.streams[1].choice.adapter is None


async def test_models_list_adapters_with_the_model_that_they_belong_to(http: httpx2.AsyncClient) -> None:
    listed = (await http.get("/v1/models")).json()["data"]
    assert [(each["id"], each["root"], each.get("parent")) for each in listed] == [
        ("tiny", "tiny", None),
        ("poet", "tiny", "tiny"),
        ("late", "tiny", "tiny"),
    ]
    assert (await http.get("/v1/models/poet")).json()["parent"] == "tiny"


async def test_an_unknown_adapter_is_an_unknown_model_and_one_that_no_worker_has_yet_is_not(
    http: httpx2.AsyncClient,
) -> None:
    unknown = await http.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    late = await http.post("/v1/completions", json={"model": "late", "prompt": "x"})
    assert late.status_code == 503 and "'late' is not loaded yet" in late.text


async def test_adapters_are_loaded_and_unloaded_in_the_words_of_vllm(
    http: httpx2.AsyncClient, adapted: AdaptedCore
) -> None:
    loaded = await http.post(LOAD, json=SQL)
    assert loaded.status_code == 200, loaded.text
    found = loaded.json()
    assert found["message"] == "Success: LoRA adapter 'sql' added successfully."
    assert (found["parent"], found["hash"]) == ("tiny", "bb" * 32) and "sql" in adapted.models()
    gone = await http.post(UNLOAD, json={"lora_name": "sql"})
    assert gone.json()["message"] == "Success: LoRA adapter 'sql' removed successfully."
    assert (await http.post(UNLOAD, json={"lora_name": "sql"})).status_code == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "what"),
    [
        (LOAD, {"lora_path": "/a"}, 400, "lora_name is missing"),
        (LOAD, {"lora_name": "a"}, 400, "lora_path is missing"),
        (LOAD, SQL | {"model": "nobody"}, 404, "nobody"),
        (LOAD, SQL | {"base_model_name": "tiny"}, 400, "base_model_name"),
        (UNLOAD, {"lora_name": "tiny"}, 400, "is a model and no adapter"),
        (UNLOAD, {}, 400, "lora_name is missing"),
    ],
)
async def test_a_bad_order_names_its_field(
    path: str, body: Any, status: int, what: str, http: httpx2.AsyncClient
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == status and what in answer.text, answer.text


async def test_without_keys_nobody_may_load_unless_a_setting_says_so(adapted: AdaptedCore, assets: Assets) -> None:
    async with http_of(adapted, assets) as client:
        for path, body in ((LOAD, SQL), (UNLOAD, {"lora_name": "poet"})):
            answer = await client.post(path, json=body)
            assert answer.status_code == 403 and "gateway.load_adapters" in answer.text
    assert "sql" not in adapted.models() and "poet" in adapted.models()


async def test_with_keys_operators_may_load_and_nobody_else(
    adapted: AdaptedCore, assets: Assets, tmp_path: Path
) -> None:
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="", ops="operator")), lambda: 0.0)
    async with http_of(adapted, assets, tenants) as client:
        for path in (LOAD, f"{LOAD}/"):
            refused = await client.post(path, json=SQL, headers={"authorization": f"Bearer {key_of('alice')}"})
            assert refused.status_code == 403 and "sql" not in adapted.models()
        assert (await client.post(LOAD, json=SQL)).status_code == 401
        loaded = await client.post(LOAD, json=SQL, headers={"authorization": f"Bearer {key_of('ops')}"})
        assert loaded.status_code == 200 and "sql" in adapted.models()


def test_orders_are_work_of_operators_and_what_lies_beside_them_is_not() -> None:
    for path in (LOAD, UNLOAD, f"{LOAD}/"):
        assert work_at("POST", path) is Work.OPERATES
    assert work_at("POST", "/v1/completions") is Work.GENERATES and work_at("GET", "/v1/models") is Work.LOOKS
