"""A worker registers again soon while its gateway starts, and once a heartbeat while there is no gateway."""

import asyncio
from typing import Any

import pytest

from mesh.attach import SOON_SECONDS, Attachments
from mesh.messages import Register, Tier
from mesh.network import StreamClosed
from mesh.rules import RULES


class DeafFor:
    """A network on which the gateway does not answer the first `deaf` registrations."""

    def __init__(self, deaf: int) -> None:
        self.at: list[float] = []
        self._deaf = deaf

    async def register(self, gateway: str, message: Register) -> None:
        self.at.append(asyncio.get_running_loop().time())
        if len(self.at) <= self._deaf:
            raise StreamClosed("the gateway does not answer")


class Listens:
    address = "here:1"


def attachments(network: Any) -> Attachments:
    found = Attachments(
        network,
        gateways=("gateway:1",),
        tier=Tier.DECODE,
        incarnation=1,
        rules=RULES,
        hello=lambda address: pytest.fail("no gateway has dialed"),
        on_message=lambda session, message: None,
        on_end=lambda session: None,
    )
    found.listening = Listens()  # type: ignore[assignment]
    return found


async def gaps(deaf: int, seconds: float) -> list[float]:
    """Seconds between registrations, on a clock that jumps."""
    network, loop = DeafFor(deaf), asyncio.get_running_loop()
    now = 0.0
    loop.time = lambda: now  # type: ignore[method-assign]
    task = asyncio.ensure_future(attachments(network).register())
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
