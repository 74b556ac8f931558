"""`baton serve gateway` with several processes: it starts them, passes their log lines on and keeps them running.

All of them listen on the ports of clients, and the kernel spreads connections over them. When one dies, its clients
lose their connections and the others serve on; it is started again. SIGTERM drains all of them at once."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from cli.local_mesh.services import gateway_services
from cli.local_mesh.supervisor import Supervisor
from cli.local_mesh.up import run_until_signal
from cli.output import say
from mesh.config.services import GatewayConfig


def run_gateways(config: GatewayConfig, file: Path | None, overrides: Mapping[str, str]) -> None:
    """Run until SIGTERM or Ctrl-C; MeshFailed when the processes cannot start."""
    run_until_signal(_run(config, file, overrides))


async def _run(config: GatewayConfig, file: Path | None, overrides: Mapping[str, str]) -> None:
    services = gateway_services(config, overrides, str(file) if file is not None else None)
    as_json = config.log_format == "json"  # such a line names its process itself

    def show(name: str, line: str) -> None:
        say(line if as_json else f"{name}  {line}")

    supervisor = Supervisor(services, show, gateways=len(services))
    supervisor.start()
    try:
        await supervisor.all_ready()
        await asyncio.Event().wait()
    finally:
        await supervisor.stop()
