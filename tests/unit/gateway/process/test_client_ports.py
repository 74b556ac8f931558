"""The ports of clients of a gateway that has one process, when it leaves."""

from typing import Any, cast

import httpx2 as httpx

from gateway.process.client_ports import open_http
from mesh.config.services import GatewayConfig
from mesh.network.grpc_server import GrpcListening


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def test_connections_end_behind_their_next_answer() -> None:
    """A pool that keeps them would send its next request to a gateway that refuses it."""
    http, ports = await open_http(answer, GatewayConfig(http_address="127.0.0.1:0"), cast(GrpcListening, None), None)
    try:
        async with httpx.AsyncClient(base_url=f"http://{http.address}") as client:
            assert "connection" not in (await client.get("/")).headers, "negative control"
            assert not await ports.hand_over(1.0)
            assert (await client.get("/")).headers["connection"] == "close"
            assert (await client.get("/")).headers["connection"] == "close", "a new connection is served too"
    finally:
        await http.close()
