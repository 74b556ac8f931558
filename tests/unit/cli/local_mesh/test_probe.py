"""`baton health` answers with its exit status whether the service that is configured here can serve."""

import asyncio
import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cli.local_mesh.probe import worker_serves
from cli.main import build
from mesh.config.config_checks import ConfigError
from mesh.config.worker_config import DecodeConfig
from mesh.network.grpc_server import GrpcListening
from tests.harness.small_http import small_server


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[int]]]:
    """A gateway's GET /health whose status the test sets."""
    status = [200]

    with small_server(lambda target: (status[0], {"status": "ok", "prefill": 1, "decode": 2})) as address:
        yield address, status


def ask(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(build("health"), ["health", *arguments])
    return result.exit_code, result.stdout


def test_a_gateway_is_healthy_while_it_can_serve(gateway: tuple[str, list[int]]) -> None:
    address, status = gateway
    code, said = ask("gateway", "--set", f"gateway.http_address={address}", "--json")
    assert code == 0 and json.loads(said)["serving"] is True and json.loads(said)["decode"] == 2
    status[0] = 503
    code, said = ask("gateway", "--set", f"gateway.http_address={address}", "--json")
    assert code == 1 and json.loads(said)["serving"] is False


def test_a_service_that_does_not_listen_is_not_healthy(refusing_address: str) -> None:
    assert ask("gateway", "--set", f"gateway.http_address={refusing_address}")[0] == 1
    assert ask("decode", "--set", f"decode.address={refusing_address}")[0] == 1


async def test_a_worker_is_healthy_while_it_says_that_it_serves() -> None:
    listening = GrpcListening()
    await listening.start("127.0.0.1:0", None, "decode.address")
    worker = DecodeConfig(address=listening.address)
    try:
        assert await worker_serves(worker)
        await listening.set_serving(False)
        assert not await worker_serves(worker)
    finally:
        await listening.close()
    assert not await worker_serves(worker)


def test_a_worker_on_any_free_port_cannot_be_asked() -> None:
    with pytest.raises(ConfigError, match="name a port"):
        asyncio.run(worker_serves(DecodeConfig()))
