"""A mesh on this machine as a list of processes: what `baton up` and `baton demo` start.

The file and the environment are read again by every service; what differs between them (name, port, gateway) and what
was said on the command line travels as `--set key=value`."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from cli.ports import check_free, dialable
from cli.supervisor import Service, serve_arguments
from mesh.config import CommonConfig, MeshConfig, split_address

Config = TypeVar("Config", bound=CommonConfig)


def with_model(config: Config) -> Config:
    """The configuration with a model folder: the built-in pair's if it names none."""
    if config.model is not None:
        return config
    from engine.builtin import DRAFT, MODEL  # numpy and more: only for those who serve

    return dataclasses.replace(config, model=MODEL, draft=config.draft or DRAFT, served_name=config.model_name)


def services_of(mesh: MeshConfig, *, file: Path | None, said: Mapping[str, str], otlp_endpoint: str) -> list[Service]:
    """The gateway first. `said` is the command line's; ConfigError when a port is taken."""
    check_free("gateway.http_address", mesh.gateway.http_address)
    check_free("gateway.grpc_address", mesh.gateway.grpc_address)
    common = dict(said) | {"otlp_endpoint": otlp_endpoint}
    config = str(file) if file is not None else None
    services = [Service(mesh.gateway.name, serve_arguments("gateway", common, config))]
    for tier, worker, count in (
        ("prefill", mesh.prefill, mesh.prefill_workers),
        ("decode", mesh.decode, mesh.decode_workers),
    ):
        host = split_address(worker.address)[0]
        for number in range(count):
            own = {
                f"{tier}.name": f"{worker.name}-{number}",
                f"{tier}.address": f"{host}:0",  # several on one host cannot share a port
                f"{tier}.gateways": dialable(mesh.gateway.grpc_address),
                f"{tier}.workers_on_host": str(mesh.workers),
                f"{tier}.worker_on_host": str(len(services) - 1),  # the gateway came first and computes nothing
            }
            services.append(Service(own[f"{tier}.name"], serve_arguments(tier, common | own, config)))
    return services


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """--set decode.page_tokens=16 --set model=folder."""
    return {key.strip(): value for key, _, value in (pair.partition("=") for pair in pairs)}
