"""A mesh that a measurement starts for itself, at free ports of this machine where the settings name none."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from cli.local_mesh.ports import free_address
from cli.local_mesh.running import running_mesh
from cli.local_mesh.services import services_of
from cli.local_mesh.supervisor import OnLine, Service
from mesh.config.services import GatewayConfig
from mesh.config.settings import read_settings

START_SECONDS = 300.0


@asynccontextmanager
async def own_mesh(
    settings: Mapping[str, str],
    *,
    otlp_endpoint: str = "",
    on_line: OnLine = lambda name, line: None,
    changed: Callable[[Service], Service] = lambda service: service,
) -> AsyncIterator[GatewayConfig]:
    """A mesh with these settings; yields its gateway's configuration, which has the addresses. `changed` gets each
    service before it starts."""
    ports = {f"gateway.{port}_address": free_address() for port in ("http", "grpc", "worker")}
    overrides = {**ports, **settings}
    config = read_settings(None, os.environ, overrides).mesh()
    services = services_of(config, file=None, overrides=overrides, otlp_endpoint=otlp_endpoint)
    async with running_mesh(config, [changed(each) for each in services], on_line, START_SECONDS):
        yield config.gateway
