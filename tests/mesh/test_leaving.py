"""SIGTERM of a gateway under load, with real processes: short answers end, long ones say how to continue."""

import asyncio
import json
import signal

import grpc
import httpx2 as httpx
import pytest

from cli.connecting.health import get_json
from tests.harness.client import MeshClient, TokenRequest
from tests.harness.mesh import ProcessMesh, process_mesh
from tests.unit.gateway.public_grpc import details_of

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


STREAMS = 6  # streams of each length over each door
LONG, SHORT = 1500, 12


async def test_every_stream_under_load_ends_by_itself_or_says_how_to_continue() -> None:
    async with process_mesh(prefills=1, decodes=1, settings=SETTINGS) as mesh, httpx.AsyncClient(timeout=60) as http:
        client, begun = MeshClient(mesh.address), asyncio.Queue[str]()
        streams = [
            asyncio.create_task(ends)
            for length in (LONG, SHORT)
            for number in range(STREAMS)
            for ends in (
                over_http(http, mesh.http, length, begun),
                over_grpc(client, TokenRequest(f"{length}-{number}", tuple(range(40, 60)), length), begun),
            )
        ]
        for _ in range(STREAMS):  # the others may wait for their first token
            await begun.get()
        while await running(mesh) + sum(stream.done() for stream in streams) < len(streams):
            await asyncio.sleep(0.01)
        mesh.gateway.send_signal(signal.SIGTERM)
        ended = await asyncio.gather(*streams)
        await client.aclose()
        assert await mesh.gateway.ended(LEAVE_SECONDS) == 0
        assert all(worker.alive for worker in mesh.workers)
    for length, tokens, emitted in ended:
        assert emitted == (None if tokens == length else tokens), (length, tokens, emitted)
    assert sum(emitted is None for _, _, emitted in ended) >= 1, "a short answer ends"
    assert sum(emitted is not None and tokens > 0 for _, tokens, emitted in ended) >= 2, "a long one is cut off"


async def running(mesh: ProcessMesh) -> int:
    """The number of requests that the gateway has accepted and not ended."""
    load = await get_json(mesh.http, "/load")
    assert load is not None
    return int(load["server_load"])


Ended = tuple[int, int, int | None]  # tokens that are wanted, that came, and that the error counts; None: no error


async def over_http(http: httpx.AsyncClient, address: str, length: int, begun: asyncio.Queue[str]) -> Ended:
    body = {"prompt": "x", "max_tokens": length, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    tokens, data = 0, list[str]()
    async with http.stream("POST", f"http://{address}/v1/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line:
                begun.put_nowait("http")
                data.append(line.removeprefix("data: "))
    if answer.status_code != 200:  # it was cut off before its first token
        data.append("[DONE]")
    assert data[-1] == "[DONE]"
    for each in map(json.loads, data[:-1]):
        tokens += sum(len(choice.get("token_ids", ())) for choice in each.get("choices", ()))
    last = json.loads(data[-2])
    if "error" not in last:
        assert last["choices"][0]["finish_reason"] == "length"
        return length, tokens, None
    assert last["error"]["reason"] == "UNAVAILABLE" and "emitted" in last["error"]["message"]
    assert last["error"]["details"]["continue_with"] == "emitted"
    return length, tokens, int(last["error"]["details"]["emitted_tokens"])


async def over_grpc(client: MeshClient, request: TokenRequest, begun: asyncio.Queue[str]) -> Ended:
    tokens = 0
    try:
        async for delta in client.deltas(request):
            begun.put_nowait("grpc")
            tokens += len(delta.token_ids)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE and "emitted" in str(error.details())
        info = details_of(error)["ErrorInfo"].metadata
        assert info["continue_with"] == "emitted"
        return request.max_tokens, tokens, int(info["emitted_tokens"])
    return request.max_tokens, tokens, None
