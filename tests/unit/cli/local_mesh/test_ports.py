"""Addresses for a mesh on this machine: each is free, and no two of one process are equal."""

import socket

import pytest

from cli.local_mesh import ports
from cli.local_mesh.ports import check_all_free, check_free, free_address
from mesh.config.config_checks import ConfigError


def test_no_address_is_drawn_twice_even_if_nobody_listens_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(10_000, 10_050))
    monkeypatch.setattr(ports, "_drawn", set())
    drawn = [free_address() for _ in range(20)]
    assert len(set(drawn)) == 20


def test_a_port_on_which_a_process_listens_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(port, port + 1))
        with pytest.raises(ConfigError, match="no free port was found"):
            free_address()
        with pytest.raises(ConfigError, match=r"http_address: cannot listen on .* --set http_address=HOST:PORT"):
            check_free("http_address", f"127.0.0.1:{port}")


def test_all_taken_ports_of_a_mesh_are_named_at_once() -> None:
    with socket.socket() as one, socket.socket() as two:
        for taken in (one, two):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        first, second = (f"127.0.0.1:{taken.getsockname()[1]}" for taken in (one, two))
        asked = [
            ("http_address", first, "--http"),
            ("free", free_address(), "--free"),
            ("grpc_address", second, "--grpc"),
        ]
        both = rf"http_address {first} \(.*\), grpc_address {second} \(.*\); .* --http HOST:PORT --grpc HOST:PORT$"
        with pytest.raises(ConfigError, match=both):
            check_all_free(asked)
        with pytest.raises(ConfigError, match=f"http_address: cannot listen on {first} .*with --http, or stop"):
            check_all_free(asked[:2])
    check_all_free(asked)
