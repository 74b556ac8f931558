"""TLS at the HTTP port: any client with the authority's name gets in, and with `http_tls_ca` only those with a
certificate."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from gateway.dialects.api import HttpApi
from gateway.http.server import serve_http
from gateway.http.tls import http_tls
from mesh.config.config_checks import ConfigError
from mesh.config.door_config import DoorConfig
from tests.unit.certificates import Authority


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return Authority(tmp_path / "ca").sign(tmp_path / "ours")


def config(folder: Path, *, clients: bool = False) -> DoorConfig:
    authority = folder / "ca.pem" if clients else None
    pair = {"http_tls_certificate": folder / "certificate.pem", "http_tls_key": folder / "key.pem"}
    return DoorConfig(**pair, http_tls_ca=authority, header_seconds=0.5)


@asynccontextmanager
async def serving(core: Any, assets: Any, limits: DoorConfig) -> AsyncIterator[str]:
    from random import Random

    api = HttpApi(core, assets, random=Random(1), clock=lambda: 1.0)
    server = await serve_http(api.app, "127.0.0.1:0", limits=limits, tls=http_tls(limits))
    try:
        yield f"https://{server.address}"
    finally:
        await server.close()


def trusting(folder: Path, own: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if own is not None:
        context.load_cert_chain(own / "certificate.pem", own / "key.pem")
    return context


async def test_https_serves_answers_and_streams(core: Any, assets: Any, ours: Path) -> None:
    async with (
        serving(core, assets, config(ours)) as url,
        httpx.AsyncClient(verify=trusting(ours), timeout=None) as http,
    ):
        assert (await http.get(f"{url}/health")).status_code == 200
        answer = await http.post(f"{url}/v1/completions", json={"prompt": "x", "stream": True})
        assert answer.text.endswith("data: [DONE]\n\n")
        large = await http.post(f"{url}/v1/completions", json={"prompt": "x", "user": "u" * 900_000, "n": 0})
        assert large.status_code in (400, 200)
        plain = url.replace("https", "http")
        async with httpx.AsyncClient(timeout=None) as other:
            with pytest.raises(httpx.HTTPError):
                await other.get(f"{plain}/health")


async def test_with_an_authority_only_its_clients_get_in(core: Any, assets: Any, ours: Path, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").sign(tmp_path / "stranger")
    async with serving(core, assets, config(ours, clients=True)) as url:
        async with httpx.AsyncClient(verify=trusting(ours, ours), timeout=None) as http:
            assert (await http.get(f"{url}/health")).status_code == 200
        for own in (None, stranger):
            async with httpx.AsyncClient(verify=trusting(ours, own), timeout=None) as http:
                with pytest.raises(httpx.HTTPError):
                    await http.get(f"{url}/health")


async def test_a_half_sent_request_over_tls_ends_too(core: Any, assets: Any, ours: Path) -> None:
    async with serving(core, assets, config(ours)) as url:
        host, port = url.removeprefix("https://").split(":")

        def half() -> bytes:
            with socket.create_connection((host, int(port)), timeout=20) as raw:
                with trusting(ours).wrap_socket(raw, server_hostname=host) as connection:
                    connection.sendall(b"GET /health HT")
                    return connection.recv(4096)

        assert b" 408 " in await asyncio.to_thread(half)


def test_files_that_cannot_be_used_are_named(ours: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http_tls_key: is missing beside http_tls_certificate"):
        DoorConfig(http_tls_certificate=ours / "certificate.pem")
    with pytest.raises(ConfigError, match="http_tls_certificate: is missing beside"):
        DoorConfig(http_tls_ca=ours / "ca.pem")
    (tmp_path / "empty").write_text("")
    with pytest.raises(ConfigError, match="are no PEM certificate with its key"):
        http_tls(DoorConfig(http_tls_certificate=tmp_path / "empty", http_tls_key=ours / "key.pem"))
    with pytest.raises(ConfigError, match=r"http_tls_ca: .* holds no PEM certificate"):
        pair = {"http_tls_certificate": ours / "certificate.pem", "http_tls_key": ours / "key.pem"}
        http_tls(DoorConfig(**pair, http_tls_ca=tmp_path / "empty"))
    assert http_tls(DoorConfig()) is None
