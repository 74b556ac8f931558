"""Settings that are addresses, hosts and ports: what is refused, and what the error says was meant."""

from pathlib import Path
from typing import Any

import pytest

from mesh.config.config_checks import ConfigError
from mesh.config.services import GatewayConfig
from mesh.config.settings import read_settings
from mesh.config.worker_config import DecodeConfig


@pytest.mark.parametrize(
    ("key", "given", "example"),
    [
        ("http_address", "8011", "127.0.0.1:8011"),
        ("http_address", "here", "127.0.0.1:8000"),
        ("grpc_address", "here", "127.0.0.1:50051"),
        ("grpc_address", "99999", "127.0.0.1:50051"),
        ("worker_address", "here", "127.0.0.1:50052"),
    ],
)
def test_an_address_without_a_host_is_refused_with_the_address_that_was_meant(
    key: str, given: str, example: str
) -> None:
    with pytest.raises(ConfigError, match=f"'{given}' is not host:port, for instance {example}$"):
        read_settings(overrides={f"gateway.{key}": given}).gateway()


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("::1:50051", r"\[::1\]:50051"),
        ("::1", r"\[::1\]:50051"),
        ("fe80::1%eth0:7", r"\[fe80::1%eth0\]:7"),
        ("a:b:7", r"\[::1\]:50051"),
    ],
)
def test_an_ipv6_address_without_brackets_is_refused_with_the_address_that_was_meant(given: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=rf"an IPv6 address stands in brackets, for instance {meant}"):
        read_settings(overrides={"gateway.grpc_address": given}).gateway()
    assert read_settings(overrides={"gateway.grpc_address": "[::1]:50051"}).gateway().grpc_address == "[::1]:50051"


def test_clients_and_workers_cannot_share_a_port() -> None:
    with pytest.raises(ConfigError, match=r"worker_address: 127\.0\.0\.1:50051 is grpc_address too"):
        read_settings(overrides={"gateway.worker_address": "127.0.0.1:50051"}).gateway()


def test_a_worker_on_every_interface_says_what_others_dial() -> None:
    assert DecodeConfig(address="0.0.0.0:7001", advertise_host="decode-0").advertise_host == "decode-0"


@pytest.mark.parametrize("host", ["::1", "decode-0:7001", "[::1]:7001"])
def test_an_advertised_host_has_no_port_and_an_ipv6_address_stands_in_brackets(host: str) -> None:
    with pytest.raises(ConfigError, match=r"advertise_host: .* without a port, an IPv6 address in brackets"):
        DecodeConfig(advertise_host=host)
    assert DecodeConfig(advertise_host="[::1]").advertise_host == "[::1]"


def test_behind_a_sidecar_a_process_listens_on_loopback_only(tmp_path: Path) -> None:
    sidecar = "127.0.0.1:15001"
    assert DecodeConfig(sidecar=sidecar, address="127.0.0.1:7000", advertise_port=7001).sidecar == sidecar
    with pytest.raises(ConfigError, match=r"^address: 10\.0\.0\.3:7000 would serve plain text past the sidecar"):
        DecodeConfig(sidecar=sidecar, address="10.0.0.3:7000")
    with pytest.raises(ConfigError, match=r"^grpc_address: 0\.0\.0\.0:50051 would serve plain text past the sidecar"):
        GatewayConfig(sidecar=sidecar, grpc_address="0.0.0.0:50051")
    assert GatewayConfig(sidecar="localhost:1", grpc_address="[::1]:50051").sidecar == "localhost:1"


@pytest.mark.parametrize(
    ("sidecar", "message"),
    [("10.0.0.9:15001", "sidecar: .* is not on the loopback"), ("15001", "sidecar: '15001' is not host:port")],
)
def test_a_sidecar_is_an_address_on_loopback(sidecar: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GatewayConfig(sidecar=sidecar)


def test_an_advertised_port_is_a_port() -> None:
    with pytest.raises(ConfigError, match="advertise_port: 70000 is not between 0 and 65535"):
        DecodeConfig(advertise_port=70000)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"processes": 0}, "processes: 0 is not between 1 and 1024"),
        ({"processes": 2, "process": 2}, "process: 2 is not between 0 and 1"),
        ({"process": 1}, "process: 1 is not between 0 and 0"),
        ({"processes": 2, "http_address": "127.0.0.1:0"}, "http_address: 127.0.0.1:0 leaves the port open"),
        ({"processes": 2, "worker_address": "127.0.0.1:0"}, "worker_address: 127.0.0.1:0 leaves the port open"),
        ({"processes": 3, "worker_address": "127.0.0.1:65534"}, "worker_address: 127.0.0.1:65534 has no 2 ports"),
        ({"processes": 3, "worker_address": "127.0.0.1:50049"}, "ports 50049 to 50051 .* grpc_address is one of them"),
    ],
)
def test_processes_of_a_gateway_have_ports_that_are_known_and_apart(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GatewayConfig(**more)


def test_each_process_of_a_gateway_has_a_port_for_workers() -> None:
    several = GatewayConfig(processes=3, process=2, worker_address="[::1]:7000")
    assert several.worker_addresses == ("[::1]:7000", "[::1]:7001", "[::1]:7002")
    assert several.own_worker_address == "[::1]:7002"
    assert GatewayConfig(worker_address="127.0.0.1:0").own_worker_address == "127.0.0.1:0"
