"""The RDMA transport as tests open it, and the content of their pools, which both processes know."""

import os
from random import SystemRandom

import numpy as np
import pytest

from kvtransfer.nixl_agent import RdmaFabric
from kvtransfer.pool import SharedPool
from kvtransfer.rdma import Rdma, RdmaOptions
from kvtransfer.rdma_host import missing_package
from mesh.messages.page_shape import opaque_pages

IMITATED = RdmaFabric("tcp", "lo")  # UCX imitates one-sided writes over TCP: needs no device
KEYLESS = RdmaFabric("cma,tcp", "lo")  # UCX writes through the kernel, without a key that the receiver could destroy
VERBS = RdmaFabric()
CHOSEN = "BATON_TEST_FABRIC"  # environment variable: "verbs" runs the conformance suite over a real device

SHAPE, PAGES = opaque_pages((4, 4096), (1, 1024), content="rdma-check"), 96
TICKET, WRITER, RECEIVER = bytes(range(32)), 0xA11CE, 0xB0B


def need_nixl() -> None:
    """Leave a test out where the package is not installed."""
    if obstacle := missing_package():
        pytest.skip(obstacle)


def chosen_fabric() -> RdmaFabric:
    return VERBS if os.environ.get(CHOSEN) == "verbs" else IMITATED


def transport(fabric: RdmaFabric, write_seconds: float = 120.0) -> Rdma:
    """Its patience covers emulated machines."""
    return Rdma(
        SystemRandom(),
        RdmaOptions(fabric=fabric, handshake_seconds=120.0, join_seconds=120.0, write_seconds=write_seconds),
    )


def content(number: int) -> bytes:
    """The writer's whole pool in pass `number`; no byte of it is zero."""
    return np.random.default_rng(number).integers(1, 256, SHAPE.page_bytes * PAGES, np.uint8).tobytes()


def filled_pool(number: int) -> SharedPool:
    pool = SharedPool(SHAPE, PAGES)
    pool.buffer[:] = content(number)
    return pool
