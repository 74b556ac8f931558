"""One process of a mesh, started by `bench/mesh_process.py`: the product's service with a window into it.

`python -m bench.worker_process ORDERS`. Commands come as JSON lines on stdin, answers and events leave as JSON lines on
stdout, people read stderr. The service itself is the product's, put together by its own main module."""

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Awaitable
from typing import Any

import baton_kernels
from bench.orders import Orders
from bench.window import Window, decode_commands, prefill_commands, tell
from cli.loop import PreciseLoop
from cli.mesh import with_model
from cli.orphan import die_with
from mesh.errors import WorkersDied
from mesh.serving import run_together
from mesh.settings import read_settings
from mesh.telemetry import Silent


async def gateway(orders: Orders) -> None:
    from gateway.main import serve

    if not orders.resume:
        _without_resume()
    config = with_model(read_settings(overrides=orders.settings).gateway())
    tell("ready", address=config.grpc_address)
    await run_together(serve(config, Silent(), rules=orders.changed_rules()), Window({}).run())


async def prefill(orders: Orders) -> None:
    from prefill_svc.main import open_worker

    if orders.span_pause_seconds:
        _slow_copies(orders.span_pause_seconds)
    config = with_model(read_settings(overrides=orders.settings).prefill())
    rules, rate = orders.changed_rules(), orders.bytes_per_second
    async with open_worker(config, Silent(), rules=rules, bytes_per_second=rate) as worker:
        tell("ready", address=worker.attachments.address, incarnation=worker.attachments.incarnation)
        window = Window(prefill_commands(worker))
        await run_together(worker.run(), worker.attachments.register(), window.run())


async def decode(orders: Orders) -> None:
    from decode_svc.main import open_worker

    config = with_model(read_settings(overrides=orders.settings).decode())
    async with open_worker(config, Silent(), rules=orders.changed_rules()) as worker:
        tell("ready", address=worker.attachments.address, incarnation=worker.attachments.incarnation)
        window = Window(decode_commands(worker))
        await run_together(worker.run(), worker.attachments.register(), window.run())


class _Facts(logging.Handler):
    """What services note for whoever debugs them goes out of the window."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.DEBUG:
            tell("note", text=record.getMessage())


def _slow_copies(pause_seconds: float) -> None:
    """The copy kernel, span by span with pauses, in the same thread: as uninterruptible as the fast one."""
    scatter = baton_kernels.scatter

    def slow(to: Any, from_: Any, nbytes: int, keys: Any, sums: Any) -> None:
        for place in range(len(to)):
            one = slice(place, place + 1)
            scatter(to[one], from_[one], nbytes, keys[one], sums[one])
            time.sleep(pause_seconds)

    baton_kernels.scatter = slow  # type: ignore[assignment]


def _without_resume() -> None:
    """The first loss of a request becomes its client's."""
    from gateway.requests import GatewayRequest
    from gateway.sequencer import Sequencer

    raise_attempt = Sequencer.raise_attempt

    def give_up(self: Sequencer, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        if request.ticket is None:
            raise_attempt(self, request, decode_lost=decode_lost)
        else:
            self.end(request, WorkersDied("a worker ended, and resume is switched off"))

    Sequencer.raise_attempt = give_up  # type: ignore[method-assign]


async def _until_signal(service: Awaitable[None]) -> None:
    task = asyncio.ensure_future(service)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass


def main() -> None:
    orders = Orders.unpack(sys.argv[1])
    die_with(orders.parent)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    logging.getLogger("baton").setLevel(logging.DEBUG)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)
    logging.getLogger("baton").addHandler(_Facts(logging.DEBUG))
    service = {"gateway": gateway, "prefill": prefill, "decode": decode}[orders.tier]
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(_until_signal(service(orders)))


if __name__ == "__main__":
    main()
