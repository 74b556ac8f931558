"""SIGTERM of a gateway under load, with real processes: short answers end, long ones say how to continue."""

import asyncio
import json
import signal

import grpc
import httpx2 as httpx
import pytest

from tests.harness.client import MeshClient, TokenRequest
from tests.harness.mesh import process_mesh

pytestmark = pytest.mark.mesh

LEAVE_SECONDS = 60.0
SETTINGS = {"gateway.drain_seconds": "1", "worker.threads": "1", "worker.pool_pages": "256"}


async def test_a_gateway_that_gets_sigterm_ends_every_stream_whole_or_with_a_word() -> None:
    async with process_mesh(prefills=0, decodes=1, settings=SETTINGS) as mesh, httpx.AsyncClient(timeout=60) as http:
        url = f"http://{mesh.http}/v1/completions"
        body = {"prompt": "x", "stream": True, "max_tokens": 3000, "ignore_eos": True, "temperature": 0}
        client = MeshClient(mesh.address)
        call = client.call(TokenRequest("long", tuple(range(40, 60)), 3000))
        await call.read()
        async with http.stream("POST", url, json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            mesh.gateway.send_signal(signal.SIGTERM)
            while (await http.get(f"http://{mesh.http}/health")).status_code == 200:
                await asyncio.sleep(0.01)
            refused = await http.post(url, json=body)
            data = [line.removeprefix("data: ") async for line in lines if line]
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            while await call.read() is not grpc.aio.EOF:
                pass
            await call
        await client.aclose()
        assert await mesh.gateway.ended(LEAVE_SECONDS) == 0
        assert all(worker.alive for worker in mesh.workers)
    assert refused.status_code == 503 and refused.headers["x-should-retry"] == "true"
    assert data[-1] == "[DONE]"
    error = json.loads(data[-2])["error"]
    assert error["reason"] == "UNAVAILABLE" and int(error["details"]["emitted_tokens"]) > 0
    assert cut.value.code() is grpc.StatusCode.UNAVAILABLE and "emitted" in (cut.value.details() or "")
