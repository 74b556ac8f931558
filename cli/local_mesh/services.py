"""A mesh on this machine as a list of processes: what `baton up` and `baton demo` start.

Every service reads the configuration file and the environment itself. The settings in which services differ (name,
port, gateway) and those of the command line travel as `--set key=value`."""

import dataclasses
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import TypeVar

from cli.local_mesh.ports import check_all_free, dialable
from cli.local_mesh.supervisor import Service, serve_arguments
from mesh.config.arrangement import reason, this_machine, threads_of
from mesh.config.common_config import CommonConfig
from mesh.config.config_checks import ConfigError
from mesh.config.model_config import BUILTIN_NAME
from mesh.config.services import GatewayConfig, MeshConfig

Config = TypeVar("Config", bound=CommonConfig)

# Workers take all cores that they get. The gateway takes little, and every client waits for it: it goes first.
WORKER_NICENESS = 5
CLOSE_SECONDS = 5.0  # what a gateway needs behind its drain to close its doors


def with_model(config: Config) -> Config:
    """The configuration with a model folder: that of the built-in model, where the configuration names none."""
    if config.model is not None:
        return config
    from engine.builtin import DRAFT, MODEL  # imports numpy, which only services need

    names = config.served_name or (BUILTIN_NAME,)
    return dataclasses.replace(config, model=MODEL, draft=config.draft or DRAFT, served_name=names)


def services_of(
    mesh: MeshConfig, *, file: Path | None, overrides: Mapping[str, str], otlp_endpoint: str
) -> list[Service]:
    """The services of a mesh, the gateway first. `overrides` are the settings of the command line. ConfigError when a
    port is taken."""
    if sidecar := mesh.gateway.sidecar or mesh.prefill.sidecar or mesh.decode.sidecar:
        raise ConfigError(
            f"sidecar: {sidecar} cannot be the Envoy of every process of a mesh; start each service with `baton serve` "
            "beside its own sidecar"
        )
    asked = [("http", mesh.gateway.http_address), ("grpc", mesh.gateway.grpc_address)]
    asked += [("worker", address) for address in mesh.gateway.worker_addresses]
    options = {"http": "--http", "grpc": "--grpc", "worker": "--workers"}
    check_all_free([(f"gateway.{port}_address", address, options[port]) for port, address in asked])
    common = dict(overrides) | {"otlp_endpoint": otlp_endpoint}
    config = str(file) if file is not None else None
    services = gateway_services(mesh.gateway, common, config)
    gateways, models = len(services), (mesh, *mesh.further)
    for model, tier in product(models, ("prefill", "decode")):
        worker = model.prefill if tier == "prefill" else model.decode
        host = worker.address.rpartition(":")[0]  # in brackets if it is an IPv6 address
        for number in range(model.prefill_workers if tier == "prefill" else model.decode_workers):
            own = {
                f"{tier}.name": f"{worker.name}-{number}",
                f"{tier}.address": f"{host}:0",  # workers of one host cannot share a port
                f"{tier}.gateways": ",".join(map(dialable, mesh.gateway.worker_addresses)),
                f"{tier}.workers_on_host": str(mesh.workers),
                f"{tier}.worker_on_host": str(len(services) - gateways),  # they came first and compute nothing
            }
            if not worker.threads and worker.device == "cpu":
                own[f"{tier}.threads"] = str(threads_of(mesh.workers, this_machine()))
            if mesh.further:
                short = worker.model_name.rpartition("/")[2]
                own |= {"model": worker.model_name, f"{tier}.name": f"{worker.name}-{short}-{number}"}
            arguments = serve_arguments(tier, common | own, config)
            services.append(Service(own[f"{tier}.name"], arguments, niceness=WORKER_NICENESS))
    return services


def gateway_services(gateway: GatewayConfig, common: Mapping[str, str], config: str | None) -> list[Service]:
    """The processes of the gateway. Several share the ports of clients; each has a name and a port for workers."""
    drain_seconds = gateway.drain_seconds + CLOSE_SECONDS
    if gateway.processes == 1:
        return [Service(gateway.name, serve_arguments("gateway", dict(common), config), drain_seconds=drain_seconds)]
    services = []
    for number in range(gateway.processes):
        arguments = serve_arguments("gateway", {**common, "gateway.process": str(number)}, config)
        name = dataclasses.replace(gateway, process=number).own_name
        services.append(Service(name, arguments, drain_seconds=drain_seconds))
    return services


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """Settings from the arguments of `--set`: decode.page_tokens=16, model=folder."""
    return {key.strip(): value for key, _, value in (pair.partition("=") for pair in pairs)}


def arranged(mesh: MeshConfig) -> str:
    """The workers and their threads, and why there are so many."""
    prefill, decode = mesh.all_prefill_workers, mesh.all_decode_workers
    tiers = ("prefill", mesh.prefill), ("decode", mesh.decode)
    own = [f"{tier}.threads = {each.threads}" for tier, each in tiers if each.threads]
    if own or mesh.decode.device != "cpu":
        return f"{prefill} prefill + {decode} decode{', as set: ' * bool(own)}{', '.join(own)}"
    return reason(prefill, decode, this_machine(), by_machine=mesh.by_machine and not mesh.further)
