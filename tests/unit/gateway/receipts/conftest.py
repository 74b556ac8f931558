"""A gateway over HTTP and gRPC that signs receipts, with a core that computes nothing."""

import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx2
import pytest

from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from gateway.dialects.receipt_pages import receipt_routes
from gateway.grpc.api import services
from gateway.grpc.server import serve_grpc
from gateway.receipts.receipts import Receipts
from mesh.config.services import GatewayConfig
from tests.harness.served_api import served_api


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(
        tmp_path / "receipts",
        random=random.Random(5),
        clock=lambda: 1_700_000_000.0,
        version="1.2.3",
        seconds=60.0,
        most_bytes=1 << 20,
    )


@pytest.fixture
async def http(core: Any, assets: Any, receipts: Receipts) -> AsyncIterator[httpx2.AsyncClient]:
    async with served_api(core, assets, receipts=receipts, also=receipt_routes(receipts)) as address:
        async with httpx2.AsyncClient(base_url=f"http://{address}", timeout=None) as client:
            yield client


@pytest.fixture
async def rpc(core: Any, assets: Any, receipts: Receipts) -> AsyncIterator[Any]:
    api = services(core, assets, random=random.Random(3), receipts=receipts)
    server = await serve_grpc(GatewayConfig(grpc_address="127.0.0.1:0"), api)
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield pb_grpc.InferenceServiceStub(channel)
    await server.close()
