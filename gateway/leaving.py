"""How a gateway leaves: SIGTERM or Ctrl-C makes it refuse new requests, and running answers get `drain_seconds` to end.

Health checks fail from the first moment, so that balancers look elsewhere. What still runs at the end is ended with an
error that says how to continue at another gateway. A second signal ends the process at once."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from gateway.requests import GatewayRequest
from gateway.service import Gateway
from mesh.errors import BatonError, Unavailable

log = logging.getLogger("baton.gateway")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_SECONDS = 0.05  # pause between two looks at whether requests still run


async def serve_until_left(gateway: Gateway, serving: Coroutine[Any, Any, None], *, drain_seconds: float) -> None:
    """Run `serving` until the task is cancelled, or until a signal has come and the drain after it is over."""
    leave, me = asyncio.Event(), asyncio.current_task()

    def on_signal() -> None:
        if leave.is_set() and me is not None:
            me.cancel()
        leave.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    tasks = asyncio.ensure_future(serving), asyncio.ensure_future(_leave(gateway, leave, drain_seconds))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


async def _leave(gateway: Gateway, leave: asyncio.Event, drain_seconds: float) -> None:
    await leave.wait()
    await drain(gateway, drain_seconds)


async def drain(gateway: Gateway, drain_seconds: float) -> None:
    """Refuse new requests and return when none runs any more; what runs longer than `drain_seconds` is ended."""
    gateway.drain()
    requests, loop = gateway.sequencer.requests, asyncio.get_running_loop()
    if requests:
        log.info("leaving: answers still run (%d) and have %g s to end", len(requests), drain_seconds)
    end = loop.time() + drain_seconds
    while requests and loop.time() < end:
        await asyncio.sleep(POLL_SECONDS)
    if ended := gateway.end_all(cut_off):
        log.warning("leaving: answers were cut off (%d) because they did not end in %g s", ended, drain_seconds)


def cut_off(request: GatewayRequest) -> BatonError:
    """The error of a request that this gateway cannot finish."""
    count = request.next_position
    error = Unavailable(
        f"this gateway shuts down; choice {request.choice.sampling.choice} ended after {count} tokens. To continue "
        "exactly, send the request to another gateway over gRPC with the tokens received as `emitted`, and the seed "
        "and numerics class of Started; or send it again"
    )
    error.details |= {"emitted_tokens": str(count), "continue_with": "emitted"}
    return error
