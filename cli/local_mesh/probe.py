"""`baton health`: whether the service that is configured here can serve, as an exit status for Docker and Kubernetes.

It reads the settings that the service reads, dials the service's own port and asks its standard health check: for the
gateway `GET /health`, which answers 200 while a worker can take a request; for a worker gRPC's."""

import asyncio
import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import grpc
import typer

from cli.connecting.health import ANSWER_SECONDS, health
from cli.errors import readable_errors
from cli.local_mesh.ports import dialable
from cli.local_mesh.services import parse_settings
from cli.output import emit_json, fail
from mesh.config.config_checks import ConfigError
from mesh.config.settings import read_settings
from mesh.config.worker_config import WorkerConfig
from mesh.network.tls import open_channel, tls_files

_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}


class ServiceName(StrEnum):
    GATEWAY = "gateway"
    PREFILL = "prefill"
    DECODE = "decode"


def probe(
    service: Annotated[ServiceName, typer.Argument(help="The service that runs here.")],
    config: Annotated[Path | None, typer.Option(help="TOML file of the service.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="KEY=VALUE: one setting, over the file and the environment.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Ask the service of this container or machine whether it can serve. Status 0: yes; 1: no.

    Example: baton health decode --config baton.toml
    """
    with readable_errors():
        read = read_settings(config, os.environ, parse_settings(settings or []))
        if service is ServiceName.GATEWAY:
            address = dialable(read.gateway().http_address)
            answer = asyncio.run(health(address)) or {}
            serving = bool(answer)
        else:
            worker = read.prefill() if service is ServiceName.PREFILL else read.decode()
            address, answer = dialable(worker.address), {}
            serving = asyncio.run(worker_serves(worker))
    if json:
        emit_json({**answer, "service": service.value, "address": address, "serving": serving})
    if not serving:
        fail(f"the {service.value} at {address} cannot serve")


async def worker_serves(worker: WorkerConfig) -> bool:
    """Whether the worker answers SERVING. With TLS its certificate must carry the name that its peers dial; beside a
    sidecar its port is plain text."""
    if worker.address.endswith(":0"):
        raise ConfigError(f"address: {worker.address} takes any free port, which a probe cannot know; name a port")
    tls = None if worker.sidecar else tls_files(worker)
    if tls is not None:
        tls.name = tls.name or worker.advertise_host.strip("[]")
    async with open_channel(dialable(worker.address), tls) as channel:
        try:
            check = channel.unary_unary(_CHECK, request_serializer=bytes, response_deserializer=bytes)
            return bool(await check(b"", timeout=ANSWER_SECONDS) == _SERVING)
        except grpc.aio.AioRpcError:
            return False
