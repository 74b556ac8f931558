"""Two real models at one gateway: their answers are those that each gives alone, over HTTP and as processes."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest

from cli.connecting.health import health
from cli.local_mesh.ports import free_address
from engine.builtin.model import tiny
from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.prompts.assets import load_assets
from gateway.prompts.by_model import AssetsByName
from gateway.routing.router import Local
from tests.harness.orders import Orders
from tests.harness.process import START_SECONDS, ServiceProcess

pytestmark = pytest.mark.mesh

PROMPT = "Several pages of sixteen tokens, which both models get and cache. " * 2
NAMES = {"tiny": ("tiny", "gpt-4o"), "other": ("other",)}


async def answer(client: httpx2.AsyncClient, model: str, **more: Any) -> str:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **more}
    found = await client.post("/v1/completions", json=body)
    assert found.status_code == 200, found.text
    return str(found.json()["choices"][0]["text"])


@asynccontextmanager
async def http_of(mesh: Any, folder: Path) -> AsyncIterator[httpx2.AsyncClient]:
    both = {"tiny": load_assets(mesh.model, "tiny"), "other": load_assets(folder, "other")}
    models = AssetsByName({name: both[root] for root, names in NAMES.items() for name in names})
    api = HttpApi(mesh.gateway, models, random=Random(3), clock=lambda: 1.0)
    server = await serve_http(api.app, "127.0.0.1:0")
    async with httpx2.AsyncClient(base_url=f"http://{server.address}", timeout=120) as client:
        yield client
    await server.close()
    await api.aclose()


async def test_two_models_with_a_tier_of_each_answer_as_each_does_alone(real_mesh: Any, tmp_path: Path) -> None:
    served = ServedModels(ServedModel(names) for names in NAMES.values())
    theirs = {"model": tiny(tmp_path / "second", "qwen3", dtype="bf16", seed=5), "served_name": ("other",)}
    async with real_mesh(local=Local.NEVER, served=served) as mesh, http_of(mesh, theirs["model"]) as client:
        for tier in ("prefill", "decode"):
            await mesh.add(tier)
        alone = await answer(client, "tiny")
        for tier in ("prefill", "decode"):
            await mesh.add(tier, **theirs)
        asked = [answer(client, name) for name in ("tiny", "other", "gpt-4o") * 4]
        answers = await asyncio.gather(*asked)
        assert answers[0::3] == answers[2::3] == [alone] * 4
        assert len(set(answers[1::3])) == 1 and answers[1] != alone
        for worker in (mesh.decodes[0], mesh.prefills[0]):
            await mesh.end(worker)
        await mesh.until(lambda: not mesh.gateway.facts("tiny").healthy)
        assert await answer(client, "other") == answers[1], "now it is alone"
        health = (await client.get("/health")).json()
        assert health["models"]["other"] == {"status": "ok", "prefill": 1, "decode": 1}
        assert health["models"]["tiny"]["decode"] == 0


async def test_processes_that_are_given_a_list_of_models_serve_each_and_refuse_a_stranger(tmp_path: Path) -> None:
    for name, family in (("first", "llama3"), ("second", "qwen3"), ("third", "llama2")):
        tiny(tmp_path / name, family, dtype="bf16")
    ports = {name: free_address() for name in ("http", "grpc", "worker")}
    models = f"first={tmp_path / 'first'},gpt-4o={tmp_path / 'first'},{tmp_path / 'second'}"
    common = {f"gateway.{name}_address": address for name, address in ports.items()}
    common |= {"models": models, "worker.gateways": ports["worker"], "cache_folder": str(tmp_path / "cache")}
    stranger = common | {"models": str(tmp_path / "third"), "decode.name": "third"}
    orders = [
        Orders(tier="gateway", settings=common, parent=os.getpid()),
        Orders(tier="decode", settings=common | {"model": "gpt-4o"}, parent=os.getpid()),
        Orders(tier="decode", settings=common | {"model": "second"}, parent=os.getpid()),
        Orders(tier="decode", settings=stranger, parent=os.getpid()),
    ]
    services = [ServiceProcess(f"{each.tier}-{number}", each) for number, each in enumerate(orders)]
    async with AsyncExitStack() as stack:
        for service in services:
            stack.push_async_callback(service.stop)
        await asyncio.gather(*(service.start() for service in services))
        async with asyncio.timeout(START_SECONDS):
            while (seen := await health(ports["http"])) is None or seen["decode"] < 2 or "refused_workers" not in seen:
                await asyncio.sleep(0.05)
        assert [one.partition(" at ")[0] for one in seen["refused_workers"]] == ["third"]
        assert {name: one["decode"] for name, one in seen["models"].items()} == {"first": 1, "second": 1}
        async with httpx2.AsyncClient(base_url=f"http://{ports['http']}", timeout=120) as client:
            listed = (await client.get("/v1/models")).json()["data"]
            roots = [(one["id"], one["root"]) for one in listed]
            assert roots == [("first", "first"), ("gpt-4o", "first"), ("second", "second")]
            first, same, second = [await answer(client, name) for name in ("first", "gpt-4o", "second")]
            assert first == same != second
            metrics = (await client.get("/metrics")).text
    assert 'vllm:generation_tokens_total{model_name="first",engine="0"} 24\n' in metrics
    assert 'vllm:generation_tokens_total{model_name="second",engine="0"} 12\n' in metrics
    assert any("decode" in line and "is refused: it has model third" in line for line in services[0].lines)
