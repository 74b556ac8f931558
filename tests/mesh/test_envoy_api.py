"""The tests of the public HTTP and gRPC APIs once more, with real Envoys between client and gateway: TLS at the edge,
mutual TLS to the gateway's sidecar. The gateway's core is the tests' own, as in tests/unit/gateway."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2 as httpx
import openai
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.dialects.api import HttpApi
from gateway.grpc import api as grpc_api
from gateway.grpc.server import serve_grpc
from gateway.http.server import serve_http
from mesh.config.services import GatewayConfig
from mesh.network.grpc_network import GrpcListening
from tests.harness.envoys import EnvoyMesh, envoys_only
from tests.unit.gateway.conftest import assets, core, folder, generation, stub, tokenizer
from tests.unit.gateway.grpc import test_grpc_api, test_grpc_continuation, test_grpc_errors
from tests.unit.gateway.http import test_http, test_http_connection, test_http_options, test_http_refusals

__all__ = ["assets", "core", "folder", "generation", "stub", "tokenizer"]  # fixtures that the tests ask for

pytestmark = pytest.mark.envoy

START_SECONDS = 30.0
HTTP = (test_http, test_http_connection, test_http_options, test_http_refusals)
GRPC = (test_grpc_api, test_grpc_continuation, test_grpc_errors)

for each in (*HTTP, *GRPC):
    for name, value in vars(each).items():
        if name.startswith("test_") and callable(value):
            assert name not in globals(), name
            globals()[name] = value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnvoyMesh]:
    async with envoys_only(tmp_path_factory.mktemp("envoys")) as mesh:
        yield mesh


@pytest.fixture
async def url(envoys: EnvoyMesh, core: Any, assets: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setenv("SSL_CERT_FILE", str(envoys.ca))
    api = HttpApi(core, assets, random=random.Random(7), clock=lambda: 1_700_000_000.0)
    server = await serve_http(api.app, envoys.ports["gateway"].http)
    async with httpx.AsyncClient(timeout=None) as http, asyncio.timeout(START_SECONDS):
        while (await http.get(f"{envoys.url}/health")).status_code != 200:
            await asyncio.sleep(0.01)
    yield envoys.url
    await server.close()
    await api.aclose()


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def server(envoys: EnvoyMesh, core: Any, assets: Any) -> AsyncIterator[GrpcListening]:
    config = GatewayConfig(grpc_address=envoys.ports["gateway"].grpc)
    server = await serve_grpc(config, grpc_api.services(core, assets, random=random.Random(3)))
    yield server
    await server.close()


@pytest.fixture
async def channel(envoys: EnvoyMesh, server: GrpcListening) -> AsyncIterator[grpc.aio.Channel]:
    credentials = grpc.ssl_channel_credentials(Path(envoys.ca).read_bytes())
    async with grpc.aio.secure_channel(envoys.address, credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        async with asyncio.timeout(START_SECONDS):
            while not await _serves(health):
                await asyncio.sleep(0.01)
        yield channel


async def _serves(health: Any) -> bool:
    try:
        await health.Check(health_pb2.HealthCheckRequest())
    except grpc.aio.AioRpcError:
        return False
    return True
