"""Addresses for the tests of the command line."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def taken_address() -> Iterator[str]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing_address() -> Iterator[str]:
    """An address that is bound but does not listen: no process can take it, and none answers."""
    with socket.socket() as idle:
        idle.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{idle.getsockname()[1]}"
