"""`baton serve gateway | prefill | decode`: one service in this process, until SIGTERM.

The command reads and checks the configuration before it loads anything heavy. Status 2 means that starting again would
not help: settings, a model folder or a port are wrong, and the last line on stderr says which and what to do."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from cli.errors import readable_errors
from cli.local_mesh.orphan import die_with
from cli.local_mesh.ports import check_free
from cli.local_mesh.services import parse_settings, with_model
from cli.local_mesh.signs_of_life import signs_given
from cli.models.hub import with_models
from mesh.config.common_config import CommonConfig
from mesh.config.services import GatewayConfig
from mesh.config.settings import Settings, read_settings
from mesh.telemetry.logs import log_json, log_lines
from mesh.telemetry.lossy_output import use_lossy_stderr
from mesh.telemetry.otlp import open_telemetry
from mesh.telemetry.spans import KeptHere, Silent, Telemetry

Config = TypeVar("Config", bound=CommonConfig)
# After so many new objects the garbage collection looks at them, every fifth time at those of the last five times, and
# now and then at all: 1,000 objects take about a millisecond, for which nothing else runs.
COLLECT = (3_000, 5, 200)
Serve = Callable[[Config], Awaitable[None]]

File = Annotated[Path | None, typer.Option("--config", help="TOML file; docs/configuration.md lists the keys.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="KEY=VALUE: one setting, over the file and the environment.")
]
Parent = Annotated[int | None, typer.Option("--parent", hidden=True, help="End when this process ends.")]
Alive = Annotated[int | None, typer.Option("--alive", hidden=True, help="Pipe for signs of life: a descriptor.")]

log = logging.getLogger("baton.serve")
app = typer.Typer(
    no_args_is_help=True,
    help="Run one service: gateway, prefill or decode.\n\nExample: baton serve decode --config baton.toml",
)


@app.command()
def gateway(config: File = None, settings: Set = None, parent: Parent = None, alive: Alive = None) -> None:
    """Run the gateway: the HTTP and gRPC APIs, and the routing of requests to workers.

    Example: baton serve gateway --set gateway.http_address=0.0.0.0:8000
    """
    chosen = begin(config, settings, parent, Settings.gateway)
    with readable_errors():
        if chosen.process is None:  # else the other processes of this gateway listen there
            check_free("gateway.http_address", chosen.http_address)
            check_free("gateway.grpc_address", chosen.grpc_address)
        if chosen.process is None and chosen.processes > 1:
            for address in chosen.worker_addresses:
                check_free("gateway.worker_address", address)
            from cli.local_mesh.gateways import run_gateways

            return run_gateways(chosen, config, parse_settings(settings or []))
        check_free("gateway.worker_address", chosen.own_worker_address)
        from gateway.main import serve

    telemetry = telemetry_of(chosen)
    try:
        run_service(chosen, lambda config: serve(config, telemetry), alive)
    finally:
        telemetry.close()


@app.command()
def prefill(config: File = None, settings: Set = None, parent: Parent = None, alive: Alive = None) -> None:
    """Run a prefill worker: it computes prompts and pushes their KV pages to decode workers.

    Example: baton serve prefill --set prefill.gateways=10.0.0.1:50052 --set prefill.address=10.0.0.2:7001
    """
    chosen = begin(config, settings, parent, Settings.prefill)
    with readable_errors():
        from prefill_svc.main import serve

    run_service(chosen, serve, alive)


@app.command()
def decode(config: File = None, settings: Set = None, parent: Parent = None, alive: Alive = None) -> None:
    """Run a decode worker: it receives KV pages and generates tokens.

    Example: baton serve decode --set decode.gateways=10.0.0.1:50052 --set decode.address=10.0.0.3:7002
    """
    chosen = begin(config, settings, parent, Settings.decode)
    with readable_errors():
        from decode_svc.main import serve

    run_service(chosen, serve, alive)


def begin(
    file: Path | None, pairs: list[str] | None, parent: int | None, build: Callable[[Settings], Config]
) -> Config:
    """Prepare the process, which logs to stderr and ends with its parent; return the checked configuration."""
    if parent is not None:
        die_with(parent)
    use_lossy_stderr()
    # `baton up` adds the service's name to each line.
    log_lines("%(message)s" if parent is not None else "%(asctime)s %(levelname)s %(message)s")
    models: list[str] = []
    with readable_errors():
        read = read_settings(file, os.environ, parse_settings(pairs or []))
        config = build(with_models(read if build is Settings.gateway else read.for_worker(), tell=models.append))
    if config.log_format == "json":
        log_json(config.own_name)
    for model in models:
        log.info(model)
    return config


def run_service(config: Config, serve: Serve[Config], alive: int | None = None) -> None:
    with readable_errors():
        from cli.local_mesh.loop import PreciseLoop

        config = with_model(config)
        gc.set_threshold(*COLLECT)
        gc.freeze()  # what is imported stays: no collection looks at it again and stops the loop meanwhile
        with asyncio.Runner(loop_factory=PreciseLoop) as runner, signs_given(alive, runner.get_loop()):
            runner.run(_until_signal(serve(config)))


def telemetry_of(config: GatewayConfig) -> Telemetry:
    if not config.tracing:
        return Silent()
    if not config.otlp_endpoint:
        return KeptHere(config.trace_share)
    return open_telemetry(config.otlp_endpoint, share=config.trace_share)


async def _until_signal(service: Awaitable[None]) -> None:
    """Cancel the service on SIGTERM or SIGINT. A service that drains replaces these handlers by its own."""
    task = asyncio.ensure_future(service)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
