"""The gateway with a keys file: both doors are guarded, metrics name tenants, a change of the file counts."""

import asyncio
import base64
import logging
import ssl
from pathlib import Path
from random import Random
from typing import Any

import grpc
import httpx2
import pytest

from baton.inference.v1 import inference_pb2 as pb
from baton.inference.v1 import inference_pb2_grpc as pb_grpc
from cli.clients.client import stream
from cli.connecting.health import get_json
from cli.errors import MeshError
from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.http.tls import http_tls
from gateway.main import serve
from gateway.prompts.assets import Assets
from gateway.tenants.keys import KeyFile
from gateway.tenants.tenants import Tenants
from mesh.config.config_checks import ConfigError
from mesh.config.door_config import DoorConfig
from mesh.config.services import GatewayConfig
from mesh.telemetry.spans import Silent
from tests.unit.certificates import Authority
from tests.unit.gateway.conftest import FakeCore
from tests.unit.gateway.observability.test_metrics_page import serving
from tests.unit.gateway.tenants.keys_files import SetClock, bearer, key_of, write_keys


async def test_a_running_gateway_guards_both_doors_and_reads_the_file_again(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_keys(tmp_path / "keys", alice="concurrent=1", ops="operator")
    grpc_address = "127.0.0.1:0"
    with caplog.at_level(logging.INFO):
        async with serving(folder, keys_file=file) as http:
            ready = next(r.getMessage() for r in caplog.records if "gateway ready" in r.getMessage())
            grpc_address = ready.split(" grpc ")[1].split()[0]
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/v1/models", headers=bearer("alice"))).status_code == 200
            too_many = await http.post("/v1/completions", json={"prompt": "x", "n": 2}, headers=bearer("alice"))
            assert too_many.status_code == 429
            page = await http.get("/ui", headers={"authorization": f"Basic {password('ops')}"})
            assert page.status_code == 200 and (await http.get("/ui", headers=bearer("alice"))).status_code == 403
            async with grpc.aio.insecure_channel(grpc_address) as channel:
                stub: Any = pb_grpc.InferenceServiceStub(channel)
                counted = pb.CountTokensRequest(text="xyz")
                with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
                    await stub.CountTokens(counted)
                metadata = tuple(bearer("alice").items())
                assert (await stub.CountTokens(counted, metadata=metadata)).tokens == 3
            metrics = (await http.get("/metrics", headers=bearer("ops"))).text
            assert 'baton_tenant_refused_total{tenant="alice",limit="choices"} 1\n' in metrics
            assert 'baton_tenant_requests_total{tenant="alice"} 2\n' in metrics
            assert 'baton_errors_total{reason="UNAUTHENTICATED"} 2\n' in metrics
            write_keys(file, bob="")
            async with asyncio.timeout(30):
                while (await http.get("/v1/models", headers=bearer("bob"))).status_code != 200:
                    await asyncio.sleep(0.05)
            assert (await http.get("/v1/models", headers=bearer("alice"))).status_code == 401
    assert not any(key_of(name) in record.getMessage() for name in ("alice", "ops", "bob") for record in caplog.records)
    assert not any("every client" in record.getMessage() for record in caplog.records)


def password(name: str) -> str:
    return base64.b64encode(f"me:{key_of(name)}".encode()).decode()


async def test_a_gateway_without_a_file_serves_everybody_and_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(folder) as http:
            for headers in ({}, bearer("alice")):
                assert (await http.get("/v1/models", headers=headers)).status_code == 200
            assert "baton_tenant_requests_total{" not in (await http.get("/metrics")).text
    assert any("every client" in record.getMessage() for record in caplog.records)


async def test_a_file_that_cannot_be_used_is_an_error_at_start(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gateway\.keys_file: .*missing cannot be read"):
        await serve(GatewayConfig(model=folder, keys_file=tmp_path / "missing"), Silent())


@pytest.mark.parametrize("path", ["health", "/health/", "//health", "/", "", "/a b", "/health?x=1", "/a#b"])
def test_an_open_path_is_written_as_in_a_url(path: str) -> None:
    with pytest.raises(ConfigError, match=r"keys_open_paths: .* is no path"):
        DoorConfig(keys_open_paths=(path,))


async def test_a_certificate_names_a_tenant_over_http_too(core: FakeCore, assets: Assets, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    ours = authority.sign(tmp_path / "ours")
    robot = authority.sign(tmp_path / "robot", names="URI:spiffe://a.example/robot")
    stranger = authority.sign(tmp_path / "stranger", names="DNS:stranger.internal")
    keys = write_keys(tmp_path / "keys", alice="")
    with keys.open("a") as more:
        more.write("robot certificate:spiffe://a.example/robot priority=9\n")
    pair = {"http_tls_certificate": ours / "certificate.pem", "http_tls_key": ours / "key.pem"}
    limits = DoorConfig(**pair, http_tls_ca=ours / "ca.pem")
    tenants = Tenants(KeyFile(keys), SetClock())
    api = HttpApi(core, assets, random=Random(1), clock=lambda: 1.0, tenants=tenants)
    server = await serve_http(api.app, "127.0.0.1:0", limits=limits, tls=http_tls(limits))
    statuses = []
    for own, headers in ((robot, {}), (robot, bearer("alice")), (robot, bearer("nobody")), (stranger, {})):
        context = ssl.create_default_context(cafile=ours / "ca.pem")
        context.load_cert_chain(own / "certificate.pem", own / "key.pem")
        async with httpx2.AsyncClient(verify=context, timeout=None) as http:
            answer = await http.post(f"https://{server.address}/v1/completions", json={"prompt": "x"}, headers=headers)
            statuses.append(answer.status_code)
    await server.close()
    await api.aclose()
    assert statuses == [200, 200, 401, 401]
    assert [stream.choice.priority for stream in core.streams] == [9, 0]


async def test_commands_get_in_with_the_key_of_their_variable(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = write_keys(tmp_path / "keys", ops="operator")
    with caplog.at_level(logging.INFO):
        async with serving(folder, keys_file=keys) as http:
            address = http.base_url.netloc.decode()
            ready = next(r.getMessage() for r in caplog.records if "gateway ready" in r.getMessage())
            grpc_address, request = ready.split(" grpc ")[1].split()[0], pb.GenerateRequest(text="x", model="no")
            monkeypatch.delenv("BATON_API_KEY", raising=False)
            assert await get_json(address, "/debug/requests") is None
            with pytest.raises(MeshError, match="UNAUTHENTICATED"):
                [event async for event in stream(grpc_address, request)]
            monkeypatch.setenv("BATON_API_KEY", key_of("ops"))
            assert await get_json(address, "/debug/requests") is not None
            with pytest.raises(MeshError, match="NOT_FOUND"):
                [event async for event in stream(grpc_address, request)]
