"""The client of the stubs waits as long as a gateway asks, and tries again within its time."""

import asyncio
from itertools import pairwise
from typing import Any

import grpc
import pytest

from baton.client import Client
from baton.pacing import CallPace
from baton.retry_delay import retry_delay
from gateway.grpc.errors import status_of
from mesh.errors import BatonError, BodyTooLarge, InvalidRequest, Overloaded, RateLimited, Unavailable, WorkersDied
from tests.sim.loop import run_virtual
from tests.unit.gateway.public_grpc import serve


def refusing(core: Any, error: BatonError, times: int) -> list[float]:
    """Let the core refuse so many requests; return the times at which requests came."""
    came, submit = list[float](), core.submit

    def refuse(choice: Any) -> Any:
        came.append(asyncio.get_running_loop().time())
        if len(came) <= times:
            raise error
        return submit(choice)

    core.submit = refuse
    return came


FULL = [
    Unavailable("full", retry_after_seconds=0.4),
    RateLimited("full", retry_after_seconds=0.4),
    Overloaded("full", wait_seconds=9.0, retry_after_seconds=0.4),
]


@pytest.mark.parametrize("error", FULL, ids=lambda error: error.reason)
async def test_the_client_waits_as_long_as_the_gateway_asks(server: Any, core: Any, error: BatonError) -> None:
    came = refusing(core, error, 2)
    async with Client(server.address) as client:
        assert await client.generate_text("x", timeout_seconds=60) == "hello world"
    gaps = [after - before for before, after in pairwise(came)]
    assert len(gaps) == 2 and all(0.39 <= gap for gap in gaps)


async def test_without_a_named_time_the_first_pause_is_short(server: Any, core: Any) -> None:
    """Negative control: the client waits because the gateway says so."""
    came = refusing(core, Unavailable("full", retry_after_seconds=0.0), 1)
    async with Client(server.address) as client:
        assert await client.generate_text("x", timeout_seconds=60) == "hello world"
    assert came[1] - came[0] < 30.0


async def test_a_wait_that_is_longer_than_the_time_that_is_left_does_not_begin(server: Any, core: Any) -> None:
    came = refusing(core, RateLimited("full", retry_after_seconds=300.0), 9)
    async with Client(server.address) as client:
        async with asyncio.timeout(60):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.generate_text("x", timeout_seconds=100)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and len(came) == 1


async def test_an_exhausted_resource_without_a_time_is_raised_at_once(server: Any, core: Any) -> None:
    came = refusing(core, BodyTooLarge("too large"), 9)
    async with Client(server.address) as client:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await client.generate_text("x", timeout_seconds=60)
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and len(came) == 1


def test_a_wait_of_almost_the_whole_time_leaves_some_for_the_next_try() -> None:
    async def main() -> float | None:
        pace = CallPace(0.5, patience_seconds=None, gateways=1)
        for _ in range(2):
            status = status_of(RateLimited("full", retry_after_seconds=0.19), "r1")
            await pace.after(failed(status.SerializeToString()))
        return pace.seconds_left()

    left = run_virtual(main())
    assert left is not None and left > 0.0


async def test_another_gateway_is_tried_before_the_wait(core: Any, assets: Any) -> None:
    full = type(core)(refuse=Unavailable("full", retry_after_seconds=100.0))
    first, second = await serve(full, assets), await serve(core, assets)
    try:
        async with asyncio.timeout(60), Client(first.address, second.address) as client:
            assert await client.generate_text("x") == "hello world"
    finally:
        await first.close()
        await second.close()


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Unavailable("x" * 300, retry_after_seconds=1.5), 1.5),
        (RateLimited("y", retry_after_seconds=61.25), 61.25),
        (Unavailable("z", retry_after_seconds=0.0), 0.0),
        (InvalidRequest("text", "w"), None),
        (WorkersDied("v"), None),
    ],
)
def test_the_delay_is_read_from_the_status(error: BatonError, seconds: float | None) -> None:
    raw = status_of(error, "r1").SerializeToString()
    assert retry_delay(failed(raw)) == seconds


@pytest.mark.parametrize("raw", [b"", b"\x1a", b"\xff" * 40, b"\x1a\x05abc", b"\x1a\x02\x0a\x09"])
def test_bytes_that_are_no_status_name_no_time(raw: bytes) -> None:
    assert retry_delay(failed(raw)) is None
    assert retry_delay(ValueError("other")) is None


def failed(raw: bytes) -> grpc.aio.AioRpcError:
    trailing = grpc.aio.Metadata(("grpc-status-details-bin", raw))
    return grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), trailing)
