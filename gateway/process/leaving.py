"""How a gateway leaves: SIGTERM or Ctrl-C makes it refuse new requests, and running answers get `drain_seconds` to end.

Health checks fail from the first moment, so that balancers look elsewhere. What still runs at the end is ended with an
error that says how to continue at another gateway. A second signal ends the process at once.

One of several processes refuses nothing, if another one stays: that one takes its new connections
(gateway/process/client_ports.py). Requests that come on connections which it has already are served until its drain
ends."""

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.attaching.service import Gateway
from gateway.sequencing.requests import GatewayRequest
from mesh.errors import BatonError, Unavailable

log = logging.getLogger("baton.gateway")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
POLL_SECONDS = 0.05  # pause between two looks at whether requests still run
RETRY_SECONDS = 0.5  # pause between two tries to find a process that stays: one may start meanwhile


class ClientPorts(Protocol):
    """The ports of clients."""

    async def hand_over(self, seconds: float) -> bool:
        """Let another process take new connections; requests have `seconds` to end. False: there is none."""

    @property
    def quiet(self) -> bool:
        """Whether no request is to be expected on the connections that are left."""

    async def close(self) -> None:
        """Answer other processes no more."""


class OwnPorts:
    """The ports of a gateway of one process."""

    quiet = True

    async def hand_over(self, seconds: float) -> bool:
        return False

    async def close(self) -> None:
        pass


async def serve_until_left(
    gateway: Gateway,
    serving: Coroutine[Any, Any, None],
    ports: ClientPorts,
    *,
    drain_seconds: float,
    leaves: Callable[[], None] = lambda: None,
) -> None:
    """Run `serving` until the task is cancelled, or until a signal has come and the drain after it is over. `leaves` is
    called when the signal comes."""
    leave, me = asyncio.Event(), asyncio.current_task()

    def on_signal() -> None:
        if leave.is_set() and me is not None:
            me.cancel()
        leave.set()
        leaves()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    tasks = asyncio.ensure_future(serving), asyncio.ensure_future(_leave(gateway, leave, ports, drain_seconds))
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


async def _leave(gateway: Gateway, leave: asyncio.Event, ports: ClientPorts, drain_seconds: float) -> None:
    await leave.wait()
    await drain(gateway, drain_seconds, ports)


async def drain(gateway: Gateway, drain_seconds: float, ports: ClientPorts | None = None) -> None:
    """Refuse new requests, or leave new connections to another process; return when no request runs or is to be
    expected any more. What runs longer than `drain_seconds` is ended."""
    ports, loop = ports or OwnPorts(), asyncio.get_running_loop()
    requests, end = gateway.sequencer.requests, loop.time() + drain_seconds
    handed_over = await ports.hand_over(drain_seconds)
    gateway.drain(refusing=not handed_over)
    if requests:
        log.info("leaving: answers still run (%d) and have %g s to end", len(requests), drain_seconds)
    again = loop.time() + RETRY_SECONDS
    while (requests or not ports.quiet) and (now := loop.time()) < end:
        if not handed_over and now >= again:
            handed_over, again = await ports.hand_over(end - now), now + RETRY_SECONDS
            gateway.drain(refusing=not handed_over)
        await asyncio.sleep(POLL_SECONDS)
    gateway.drain()  # from now on in any case: what still comes on an open connection learns that it must go elsewhere
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
