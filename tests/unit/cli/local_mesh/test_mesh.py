"""From a configuration to processes, and from those to a complete mesh; scripts stand in for the services."""

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from cli.connecting.health import health
from cli.errors import MeshFailed
from cli.local_mesh.ports import check_free, dialable, free_address
from cli.local_mesh.running import complete, running_mesh
from cli.local_mesh.services import parse_settings, services_of
from cli.local_mesh.supervisor import Service, Supervisor
from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig, MeshConfig
from mesh.config.settings import read_settings


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def ports(*names: str) -> dict[str, Any]:
    return {f"{name}_address": free_address() for name in names}


def settings_in(arguments: tuple[str, ...]) -> dict[str, str]:
    pairs = [value for flag, value in itertools.pairwise(arguments) if flag == "--set"]
    return parse_settings(pairs)


def test_every_service_gets_a_name_a_port_and_the_gateway(model: Path) -> None:
    overrides = {
        "model": str(model),
        "mesh.prefill_workers": "1",
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
    }
    mesh = read_settings(overrides=overrides).mesh()
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint="http://127.0.0.1:4317")
    assert [service.niceness > 0 for service in services] == ["gateway" not in service.name for service in services]
    assert [service.name for service in services] == ["gateway", "prefill-0", "decode-0", "decode-1"]
    decode = read_settings(overrides=settings_in(services[3].arguments)).decode()
    assert (decode.name, decode.address, decode.workers_on_host) == ("decode-1", "127.0.0.1:0", 3)
    assert decode.gateways == (overrides["gateway.worker_address"],)
    assert decode.otlp_endpoint == "http://127.0.0.1:4317"
    assert decode.model == model
    gateway = read_settings(overrides=settings_in(services[0].arguments)).gateway()
    assert gateway.http_address == overrides["gateway.http_address"]
    assert services[0].drain_seconds > gateway.drain_seconds and not any(s.drain_seconds for s in services[1:])


def test_a_worker_that_listens_on_an_ipv6_address_keeps_its_brackets(model: Path) -> None:
    overrides = {
        "model": str(model),
        "worker.address": "[::1]:7001",
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": free_address(),
    }
    services = services_of(read_settings(overrides=overrides).mesh(), file=None, overrides=overrides, otlp_endpoint="")
    assert read_settings(overrides=settings_in(services[-1].arguments)).decode().address == "[::1]:0"


def test_services_end_with_the_process_that_starts_them(model: Path) -> None:
    overrides = {
        "model": str(model),
        **{f"gateway.{port}_address": free_address() for port in ("http", "grpc", "worker")},
    }
    services = services_of(read_settings(overrides=overrides).mesh(), file=None, overrides=overrides, otlp_endpoint="")
    for service in services:
        assert service.arguments[service.arguments.index("--parent") + 1] == str(os.getpid())


def test_a_taken_port_is_refused_before_a_process_starts(model: Path, taken_address: str) -> None:
    mesh = MeshConfig(gateway=GatewayConfig(model=model, grpc_address=taken_address, **ports("http", "worker")))
    with pytest.raises(ConfigError, match=f"gateway.grpc_address: cannot listen on {taken_address}"):
        services_of(mesh, file=None, overrides={}, otlp_endpoint="")


def test_a_taken_port_names_the_option_that_moves_it(model: Path, taken_address: str) -> None:
    mesh = MeshConfig(gateway=GatewayConfig(model=model, http_address=taken_address, **ports("grpc", "worker")))
    with pytest.raises(ConfigError, match="choose another address with --http, or stop the process"):
        services_of(mesh, file=None, overrides={}, otlp_endpoint="")
    with pytest.raises(ConfigError, match=r"choose another address with --set gateway.grpc_address=HOST:PORT"):
        check_free("gateway.grpc_address", taken_address)


def test_a_free_address_is_free_and_a_wildcard_is_dialled_at_home() -> None:
    check_free("address", free_address())
    assert dialable("0.0.0.0:80") == "127.0.0.1:80"
    assert dialable("10.0.0.1:80") == "10.0.0.1:80"


def gateway_script(address: str, answers: list[str]) -> Service:
    """Answers GET /health with one after the other, the last one for ever; an empty one is 503."""
    script = f"""
import http.server, sys
answers = {answers!r}
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = answers.pop(0) if len(answers) > 1 else answers[0]
        self.send_response(200 if body else 503)
        self.end_headers()
        self.wfile.write(body.encode())
    def log_message(self, *arguments):
        pass
server = http.server.HTTPServer(("127.0.0.1", {address.rpartition(":")[2]}), Handler)
print("gateway ready at {address}", file=sys.stderr, flush=True)
server.serve_forever()
"""
    return Service("gateway", ("-c", script))


async def test_a_mesh_is_there_when_the_gateway_sees_all_workers() -> None:
    address = free_address()
    mesh = MeshConfig(gateway=GatewayConfig(http_address=address))
    lines: list[str] = []
    answers = ["", '{"status": "ok", "prefill": 1, "decode": 2}', '{"status": "ok", "prefill": 2, "decode": 2}']
    async with running_mesh(
        mesh, [gateway_script(address, answers)], lambda _, line: lines.append(line), 120.0
    ) as all_:
        process = all_.running[0].process
        assert process is not None and process.returncode is None
    assert process.returncode is not None
    assert lines == [f"gateway ready at {address}"]


async def test_a_mesh_that_stays_incomplete_fails_with_the_gateways_answer() -> None:
    address = free_address()
    mesh = MeshConfig(gateway=GatewayConfig(http_address=address))
    gateway = Supervisor([gateway_script(address, ['{"status": "ok", "prefill": 0, "decode": 2}'])], lambda *_: None)
    gateway.start()
    await gateway.all_ready(120.0)
    while await health(address) is None:
        await asyncio.sleep(0.05)
    with pytest.raises(MeshFailed, match=r"does not see 2 prefill and 2 decode workers.*'prefill': 0"):
        await complete(mesh, 3.0)
    await gateway.stop()


def test_settings_keep_equal_signs_in_values() -> None:
    assert parse_settings(["a.b=c=d", "x = y"]) == {"a.b": "c=d", "x": " y"}


def test_several_gateway_processes_share_ports_and_workers_know_all_of_them(model: Path) -> None:
    overrides = {
        "model": str(model),
        "gateway.processes": "3",
        "gateway.http_address": free_address(),
        "gateway.grpc_address": free_address(),
        "gateway.worker_address": "127.0.0.1:21050",
    }
    mesh = read_settings(overrides=overrides).mesh()
    services = services_of(mesh, file=None, overrides=overrides, otlp_endpoint="")
    assert [service.name for service in services][:4] == ["gateway-0", "gateway-1", "gateway-2", "prefill-0"]
    gateways = [read_settings(overrides=settings_in(service.arguments)).gateway() for service in services[:3]]
    assert {gateway.http_address for gateway in gateways} == {overrides["gateway.http_address"]}
    assert [gateway.process for gateway in gateways] == [0, 1, 2]
    names = [gateway.own_name for gateway in gateways]
    assert names == ["gateway-0", "gateway-1", "gateway-2"], "processes that were started by hand have them too"
    addresses = tuple(f"127.0.0.1:{port}" for port in (21050, 21051, 21052))
    assert tuple(gateway.own_worker_address for gateway in gateways) == addresses
    decode = read_settings(overrides=settings_in(services[-1].arguments)).decode()
    assert decode.gateways == addresses and decode.worker_on_host + 1 == decode.workers_on_host == mesh.workers
