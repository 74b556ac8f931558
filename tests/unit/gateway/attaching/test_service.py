"""A gateway and a worker that registers with an address at which it cannot be dialed."""

import asyncio
from random import Random

import pytest

from gateway.attaching.service import Gateway
from mesh.messages.jobs import Tier
from mesh.messages.reports import Register
from mesh.network.memory_network import MemoryNetwork
from tests.sim.loop import virtual


@virtual
async def test_a_worker_at_a_wrong_address_is_logged_with_the_settings_to_check(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network = MemoryNetwork(Random(1)).host("gateway")
    gateway = Gateway(network, random=Random(1), model="m")
    for _ in range(10):
        gateway.attaching.on_register(Register("nowhere:7001", Tier.DECODE, 1))
        await asyncio.sleep(1.0)
    await gateway.aclose()
    (line,) = caplog.messages
    assert line.startswith("cannot reach decode nowhere:7001") and "`advertise_host`" in line
