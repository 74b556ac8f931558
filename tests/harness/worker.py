"""One process of a test mesh: the product's own service with a window into it. `tests/harness/process.py` starts it.

`python -m tests.harness.worker ORDERS`. The process reads commands as JSON lines from stdin, writes answers and events
as JSON lines to stdout, and writes log lines to stderr. The product's own main module opens the service."""

import asyncio
import importlib
import logging
import signal
import sys
import time
from collections.abc import Awaitable
from typing import Any

import baton_kernels
from cli.local_mesh.loop import PreciseLoop
from cli.local_mesh.orphan import die_with
from cli.local_mesh.serve import telemetry_of
from cli.local_mesh.services import with_model
from mesh.config.settings import read_settings
from mesh.errors import WorkersDied
from mesh.sessions.serving import Worker, run_together, serve_worker
from tests.harness import delays
from tests.harness.events import EventHandler
from tests.harness.orders import Orders
from tests.harness.window import Window, decode_commands, gateway_commands, prefill_commands, write_fact


async def gateway(orders: Orders) -> None:
    from gateway.main import serve

    if not orders.resume:
        _end_at_first_loss()
    if not orders.notices:
        _go_on_without_clients()
    config = with_model(read_settings(overrides=orders.settings).gateway())
    write_fact("ready", address=config.grpc_address)
    telemetry = telemetry_of(config)
    try:
        window = asyncio.ensure_future(Window(gateway_commands()).run())
        try:
            await serve(config, telemetry, rules=orders.changed_rules())  # returns when the gateway has left
        finally:
            window.cancel()
    finally:
        telemetry.close()


async def prefill(orders: Orders) -> None:
    from prefill_svc.main import open_worker

    if orders.span_pause_seconds:
        _slow_copies(orders.span_pause_seconds)
    config = with_model(read_settings(overrides=orders.settings).prefill())
    rules, rate = orders.changed_rules(), orders.bytes_per_second
    async with open_worker(config, rules=rules, bytes_per_second=rate) as worker:
        write_fact("ready", address=worker.attachments.address, incarnation=worker.attachments.incarnation)
        await _serve(worker, Window(prefill_commands(worker)), config.drain_seconds if orders.drains else None)


async def decode(orders: Orders) -> None:
    from decode_svc.main import open_worker

    if orders.damage:
        importlib.import_module("tests.harness.damage").install(orders.damage)
    config = with_model(read_settings(overrides=orders.settings).decode())
    async with open_worker(config, rules=orders.changed_rules()) as worker:
        write_fact("ready", address=worker.attachments.address, incarnation=worker.attachments.incarnation)
        await _serve(worker, Window(decode_commands(worker)), config.drain_seconds if orders.drains else None)


async def _serve(worker: Worker, window: Window, drain_seconds: float | None) -> None:
    """Run until the task is cancelled or the window closes; with `drain_seconds` SIGTERM drains first."""
    if drain_seconds is None:
        await run_together(worker.run(), worker.attachments.register(), window.run())
        return
    looking = asyncio.ensure_future(window.run())
    try:
        await serve_worker(worker, drain_seconds)
    finally:
        looking.cancel()


def _apply_mutants(rules: tuple[str, ...]) -> None:
    """Replace the guards of these rules in this process. A healthy process never loads the mutants."""
    for rule in rules:
        importlib.import_module("tests.mutants.rules").apply(rule, setattr)


def _slow_copies(pause_seconds: float) -> None:
    """Copy span by span with a pause after each, in the same thread: nothing can interrupt this copy either."""
    scatter = baton_kernels.scatter

    def slow(to: Any, from_: Any, nbytes: int, keys: Any, sums: Any) -> None:
        for place in range(len(to)):
            span = slice(place, place + 1)
            scatter(to[span], from_[span], nbytes, keys[span], sums[span])
            time.sleep(pause_seconds)

    baton_kernels.scatter = slow  # type: ignore[assignment]


def _end_at_first_loss() -> None:
    """Make the gateway end a request with an error where it would raise its attempt."""
    from gateway.sequencing.requests import GatewayRequest
    from gateway.sequencing.sequencer import Sequencer

    raise_attempt = Sequencer.raise_attempt

    def give_up(self: Sequencer, request: GatewayRequest, *, decode_lost: bool = False) -> None:
        if request.ticket is None:
            raise_attempt(self, request, decode_lost=decode_lost)
        else:
            self.end(request, WorkersDied("a worker ended, and resume is switched off"))

    Sequencer.raise_attempt = give_up  # type: ignore[method-assign]


def _go_on_without_clients() -> None:
    """Make the gateway go on with requests whose clients have gone."""
    from gateway.sequencing.streams import RequestStream

    cancel = RequestStream.cancel

    def cancel_if_complete(self: RequestStream, *, complete: bool = False) -> None:
        if complete:
            cancel(self, complete=True)

    RequestStream.cancel = cancel_if_complete  # type: ignore[method-assign]


async def _until_signal(service: Awaitable[None]) -> None:
    task = asyncio.ensure_future(service)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass


def _log_to_stderr_and_events_to_stdout() -> None:
    """Log lines from INFO on go to stderr; structured events go to stdout as facts, whatever their level."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setLevel(logging.INFO)
    logger = logging.getLogger("baton")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(EventHandler())


def main() -> None:
    orders = Orders.unpack(sys.argv[1])
    die_with(orders.parent)
    _log_to_stderr_and_events_to_stdout()
    _apply_mutants(orders.mutants)
    if orders.delays:
        delays.install(orders.tier)
    service = {"gateway": gateway, "prefill": prefill, "decode": decode}[orders.tier]
    with asyncio.Runner(loop_factory=PreciseLoop) as runner:
        runner.run(_until_signal(service(orders)))


if __name__ == "__main__":
    main()
