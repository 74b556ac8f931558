"""Receipts at a gateway with tenants: each tenant finds its own alone, over HTTP and gRPC; the public key is open."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.dialects.api import HttpApi
from gateway.dialects.receipt_pages import receipt_routes
from gateway.grpc.api import services
from gateway.grpc.guard import GrpcGuard
from gateway.grpc.server import serve_grpc
from gateway.http.server import serve_http
from gateway.prompts.assets import Assets
from gateway.receipts.canonical import read_receipt
from gateway.receipts.receipts import Receipts
from gateway.tenants.admission import UNKNOWN
from gateway.tenants.keys import KeyFile
from gateway.tenants.tenants import Tenants
from gateway.tracing.traces import RecentTraces
from mesh.config.services import GatewayConfig
from mesh.telemetry.spans import KeptHere
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.public_grpc import ask
from tests.unit.gateway.tenants.keys_files import SetClock, bearer, key_of, write_keys


@pytest.fixture
async def doors(core: FakeCore, assets: Assets, tmp_path: Path) -> AsyncIterator[tuple[httpx2.AsyncClient, Any]]:
    """Both front doors over the same receipts and tenants."""
    drawn = random.Random(5)
    receipts = Receipts(
        tmp_path / "receipts", random=drawn, clock=lambda: 1.7e9, version="1", seconds=60.0, most_bytes=1 << 20
    )
    tenants = Tenants(KeyFile(write_keys(tmp_path / "keys", alice="", bob="")), SetClock())
    traces = RecentTraces(KeptHere(), random=drawn, admission=UNKNOWN)
    routes = receipt_routes(receipts)
    common: Any = {"random": drawn, "traces": traces, "receipts": receipts}
    api = HttpApi(core, assets, clock=lambda: 1.7e9, also=routes, tenants=tenants, **common)
    http_server = await serve_http(api.app, "127.0.0.1:0", limits=core.limits)
    guard = GrpcGuard(tenants, count_error=core.count_error, random=drawn)
    config = GatewayConfig(grpc_address="127.0.0.1:0")
    grpc_server = await serve_grpc(config, services(core, assets, **common), guards=[guard])
    async with (
        httpx2.AsyncClient(base_url=f"http://{http_server.address}", timeout=None) as http,
        grpc.aio.insecure_channel(grpc_server.address) as channel,
    ):
        yield http, pb_grpc.InferenceServiceStub(channel)
    await http_server.close()
    await grpc_server.close()
    await api.aclose()


async def statuses(http: httpx2.AsyncClient, id: str) -> list[int]:
    return [(await http.get(f"/v1/receipts/{id}", headers=bearer(name))).status_code for name in ("alice", "bob")]


async def test_a_receipt_over_http_is_found_by_its_tenant_alone(doors: tuple[httpx2.AsyncClient, Any]) -> None:
    http, _ = doors
    body = {"prompt": "x", "receipt": True}
    answer = await http.post("/v1/completions", json=body, headers=bearer("alice"))
    id = answer.json()["receipt"]["id"]
    assert await statuses(http, id) == [200, 404]
    assert (await http.get(f"/v1/receipts/{id}")).status_code == 401


async def test_a_receipt_over_grpc_is_found_by_its_tenant_alone(doors: tuple[httpx2.AsyncClient, Any]) -> None:
    http, stub = doors
    metadata = (("authorization", f"Bearer {key_of('bob')}"),)
    answer = await stub.Generate(ask(receipt=True), metadata=metadata)
    id = str(read_receipt(answer.finished.receipt_json.encode())["id"])
    assert await statuses(http, id) == [404, 200]


async def test_the_public_key_is_read_without_a_key(doors: tuple[httpx2.AsyncClient, Any]) -> None:
    assert (await doors[0].get("/v1/receipts/key")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_a_refused_message_has_the_error_of_its_api(doors: tuple[httpx2.AsyncClient, Any], path: str) -> None:
    refused = await doors[0].post(path, json={})
    content = refused.json()
    assert refused.status_code == 401 and content["type"] == "error"
    assert content["error"]["type"] == "authentication_error"
    assert content["request_id"] == refused.headers["request-id"] == refused.headers["x-request-id"]
