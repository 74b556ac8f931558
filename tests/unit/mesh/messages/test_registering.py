"""A worker registers until every gateway has dialed it: soon while they start, then once a heartbeat."""

import asyncio
from typing import Any

import pytest

from mesh.messages.reports import Register
from mesh.network.interface import StreamClosed
from mesh.rules import RULES
from mesh.sessions.attach import LOOK_SECONDS, SOON_SECONDS, Attachments
from tests.sim.loop import run_virtual
from tests.unit.mesh.attachments import attachments


class DeafFor:
    """A network on which the gateway does not answer the first `deaf` registrations."""

    def __init__(self, deaf: int) -> None:
        self.at: list[float] = []
        self._deaf = deaf

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return (gateway,)

    async def register(self, gateway: str, message: Register) -> None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) <= self._deaf:
            raise StreamClosed("the gateway does not answer")


class Listens:
    address = "here:1"


def undialed(network: Any) -> Attachments:
    found = attachments(network, gateways=("gateway:1",), load=lambda: pytest.fail("no gateway has dialed"))
    found.listening = Listens()  # type: ignore[assignment]
    return found


async def gaps(deaf: int, seconds: float) -> list[float]:
    """Seconds between registrations, on a clock that jumps."""
    network, loop = DeafFor(deaf), asyncio.get_running_loop()
    now = 0.0
    loop.time = lambda: now  # type: ignore[method-assign]
    task = asyncio.ensure_future(undialed(network).register())
    while now < seconds:
        await asyncio.sleep(0)
        now += 0.001
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return [after - before for before, after in zip(network.at, network.at[1:], strict=False)]


async def test_a_worker_registers_again_soon_while_its_gateway_starts() -> None:
    assert sum((await gaps(deaf=3, seconds=2.0))[:3]) == pytest.approx(7 * SOON_SECONDS, abs=0.05)


async def test_a_worker_registers_once_a_heartbeat_where_no_gateway_answers() -> None:
    assert (await gaps(deaf=100, seconds=8.0))[-1] == pytest.approx(RULES.heartbeat_seconds, abs=0.05)
    assert (await gaps(deaf=0, seconds=4.0))[0] == pytest.approx(RULES.heartbeat_seconds, abs=0.05)


async def test_a_worker_whose_gateway_does_not_answer_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    await gaps(deaf=100, seconds=8.0)
    assert caplog.messages == ["cannot reach gateway gateway:1: the gateway does not answer"]


class Growing:
    """A network on which one name stands for the gateways that a test puts behind it."""

    def __init__(self, *gateways: str) -> None:
        self.gateways = gateways
        self.asked: list[str] = []

    async def resolve(self, gateway: str) -> tuple[str, ...]:
        return self.gateways

    async def register(self, gateway: str, message: Register) -> None:
        self.asked.append(gateway)


def test_a_worker_registers_with_every_gateway_behind_a_name_and_with_those_that_come_later() -> None:
    async def main() -> tuple[list[str], list[str]]:
        network = Growing("a:1", "b:1")
        worker = undialed(network)
        task = asyncio.ensure_future(worker.register())
        await asyncio.sleep(0.5)
        first = list(network.asked)
        worker.sessions += [None, None]  # type: ignore[list-item]
        await asyncio.sleep(1.0)
        network.asked.clear()
        network.gateways = ("a:1", "b:1", "c:1")
        await asyncio.sleep(LOOK_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return first, network.asked

    first, later = run_virtual(main())
    assert first == ["a:1", "b:1"]
    assert later[:3] == ["a:1", "b:1", "c:1"]
