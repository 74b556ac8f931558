"""The edge and certificates, with real Envoys: what is sent again, what is taken off, what renewed files change.

The gateway behind its sidecar is a small server of the test, so that it can count and refuse."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
import pytest
import pytest_asyncio

from cli.envoy.certificates import make_certificate
from gateway.http.server import serve_http
from tests.harness.envoys import DAYS, TRUST_DOMAIN, EnvoyMesh, envoys_only

pytestmark = pytest.mark.envoy
in_one_loop = pytest.mark.asyncio(loop_scope="module")

PATIENCE_SECONDS = 20.0  # a guard against hanging


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EnvoyMesh]:
    async with envoys_only(tmp_path_factory.mktemp("edge"), watch=True) as mesh:
        yield mesh


@asynccontextmanager
async def gateway(envoys: EnvoyMesh, *, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    """Answers every request with what it got; yields the list of the requests' headers."""
    seen: list[dict[str, str]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got = {name.decode(): value.decode() for name, value in scope["headers"]}
        if got.get("x-warm") is None:
            seen.append(got)
        extra = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        answer = json.dumps(got).encode()
        start = {"type": "http.response.start", "status": 200 if "x-warm" in got else status}
        await send(start | {"headers": [(b"content-length", b"%d" % len(answer)), *extra]})
        await send({"type": "http.response.body", "body": answer})

    server = await serve_http(app, envoys.ports["gateway"].http)
    try:
        async with client(envoys) as http, asyncio.timeout(PATIENCE_SECONDS):
            while (await http.get("/v1/models", headers={"x-warm": "1"})).status_code != 200:
                await asyncio.sleep(0.05)
        yield seen
    finally:
        await server.close()


def client(envoys: EnvoyMesh) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=envoys.url, verify=ssl.create_default_context(cafile=str(envoys.ca)), timeout=None
    )


@in_one_loop
async def test_headers_by_which_a_client_could_pretend_are_taken_off(envoys: EnvoyMesh) -> None:
    forged = {
        "x-forwarded-for": "10.9.9.9",
        "x-forwarded-proto": "gopher",
        "x-forwarded-client-cert": "URI=spiffe://baton/gateway/gateway",
        "x-envoy-original-path": "/metrics",
        "x-envoy-retry-on": "5xx",
        "x-envoy-upstream-rq-timeout-ms": "1",
        "forwarded": "for=10.9.9.9",
        "x-real-ip": "10.9.9.9",
    }
    async with gateway(envoys) as seen, client(envoys) as http:
        answer = await http.get("/v1/models", headers={**forged, "authorization": "Bearer mine", "x-request-id": "a b"})
    (got,) = seen
    assert "," not in got["x-forwarded-for"] and got["x-forwarded-proto"] == "https"  # Envoy's own
    assert not ({*forged} - {"x-forwarded-for", "x-forwarded-proto"}) & {*got}
    assert "10.9.9.9" not in str(got) and "spiffe" not in str(got)
    assert got["authorization"] == "Bearer mine" and got["x-request-id"] == "a b"
    assert not [name for name in answer.headers if name.startswith("x-envoy")]


@in_one_loop
@pytest.mark.parametrize("headers", [{}, {"x-should-retry": "true"}, {"x-should-retry": "false"}])
async def test_a_request_that_a_lone_gateway_answered_is_not_sent_again(
    envoys: EnvoyMesh, headers: dict[str, str]
) -> None:
    async with gateway(envoys, status=503, headers=headers) as seen, client(envoys) as http:
        answer = await http.post("/v1/completions", json={"prompt": "x"})
    assert answer.status_code == 503 and len(seen) == 1


@in_one_loop
async def test_a_request_whose_connection_breaks_under_way_is_not_sent_again(envoys: EnvoyMesh) -> None:
    """A gateway that takes the whole request and then dies."""
    host, _, port = envoys.ports["gateway"].http.rpartition(":")
    taken: list[bytes] = []

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(await reader.readuntil(b"}"))
        writer.close()

    server = await asyncio.start_server(die, host, int(port), reuse_address=True)
    async with client(envoys) as http:
        answer = await http.post("/v1/completions", json={"prompt": "x"})
    server.close()
    await server.wait_closed()
    assert answer.status_code == 503 and len(taken) == 1
    error = answer.json()["error"]
    assert error["type"] == "server_error" and "reset" in error["message"]


@in_one_loop
async def test_bodies_and_headers_have_limits(envoys: EnvoyMesh) -> None:
    async with gateway(envoys) as seen, client(envoys) as http:
        large = await http.post("/v1/completions", content=b"x" * (4 * 2**20 + 1))
        many = await http.get("/v1/models", headers={f"x-{number}": "1" for number in range(120)})
    assert (large.status_code, many.status_code, seen) == (413, 431, [])
    assert large.json()["error"]["code"] == 413


@in_one_loop
async def test_unfinished_uploads_do_not_shut_others_out(envoys: EnvoyMesh) -> None:
    context, host, port = ssl.create_default_context(cafile=str(envoys.ca)), *envoys.address.split(":")
    writers: list[asyncio.StreamWriter] = []
    async with gateway(envoys), client(envoys) as http:
        for _ in range(100):
            _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=host)
            writers.append(writer)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 4000000\r\n\r\n")
            writer.write(b" " * 3_900_000)
            with contextlib.suppress(ConnectionError, TimeoutError):  # the edge may take its memory back
                async with asyncio.timeout(2.0):
                    await writer.drain()
        statuses = [(await http.get("/v1/models")).status_code for _ in range(5)]
        for writer in writers:
            writer.transport.abort()
        async with asyncio.timeout(PATIENCE_SECONDS):  # the next test finds the edge with its memory free
            while await envoys.envoys["edge"].stat("server.memory_allocated") > 100 * 2**20:
                await asyncio.sleep(0.2)
    assert statuses == [200] * 5


@in_one_loop
async def test_what_is_not_grpc_does_not_reach_a_grpc_service(envoys: EnvoyMesh) -> None:
    async with gateway(envoys) as seen, client(envoys) as http:
        paths = ("/grpc.reflection.x", "/grpc.health.v1.Health/Check", "/baton.inference.v1.InferenceService/Models")
        statuses = [(await http.get(path)).status_code for path in paths for _ in range(3)]
    assert statuses == [404] * 9 and seen == []
    assert await envoys.envoys["edge"].stat("cluster.gateways.outlier_detection.ejections_active") == 0


@in_one_loop
async def test_renewed_certificates_are_taken_without_a_restart(envoys: EnvoyMesh) -> None:
    folder = envoys.folder / "tls"
    before = await asyncio.to_thread(_shown_certificate, envoys)
    member = envoys.member("gateway")
    await asyncio.to_thread(make_certificate, folder, member, trust_domain=TRUST_DOMAIN, days=DAYS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await asyncio.to_thread(_shown_certificate, envoys) == before:
            await asyncio.sleep(0.1)
    async with gateway(envoys), client(envoys) as http:
        assert (await http.get("/v1/models")).status_code == 200


def _shown_certificate(envoys: EnvoyMesh) -> bytes:
    """The certificate that the gateway's sidecar shows to the edge."""
    own = envoys.folder / "tls" / "edge"
    context = ssl.create_default_context(cafile=str(envoys.ca))
    context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    host, _, port = envoys.member("gateway").address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as plain:
        with context.wrap_socket(plain, server_hostname=host) as encrypted:
            shown = encrypted.getpeercert(binary_form=True)
    assert shown is not None
    return shown
