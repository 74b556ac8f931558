"""The gateway as a process: both front doors over the core. HTTP, clients of the gRPC API, and workers have
a port each."""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from random import Random, SystemRandom
from typing import Any

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.attaching.served_models import ServedModel, ServedModels
from gateway.attaching.service import Gateway
from gateway.batches.bounds import FileBounds
from gateway.batches.store import BatchStore
from gateway.dialects.api import HttpApi
from gateway.dialects.debug_pages import debug_routes
from gateway.dialects.info import package_version
from gateway.dialects.openai.memory import bound_free_memory
from gateway.dialects.receipt_pages import receipt_routes
from gateway.grpc.admin import admin
from gateway.grpc.api import services
from gateway.grpc.guard import GrpcGuard
from gateway.grpc.load import load_of
from gateway.grpc.server import serve_grpc
from gateway.http.hosts import KnownHosts, accepts_any_host
from gateway.http.tls import http_tls
from gateway.observability.by_model import MetricsByModel
from gateway.observability.export import MeshCollector
from gateway.observability.metrics_page import metrics_routes
from gateway.observability.pages import page_routes, view_of_pages
from gateway.observability.ui import Ui
from gateway.process.client_ports import open_http
from gateway.process.leaving import serve_until_left
from gateway.process.siblings import Siblings
from gateway.process.whole_pages import WholePages
from gateway.prompts.assets import Assets, load_assets
from gateway.prompts.by_model import AssetsByName
from gateway.receipts.receipts import Receipts
from gateway.routing.router import Local
from gateway.sequencing.observer import UNOBSERVED, RequestObserver
from gateway.stored.responses import StoredResponses
from gateway.tenants.admission import OPEN, UNKNOWN
from gateway.tenants.tenants import Tenants, open_tenants
from gateway.tracing.slo_limits import Limits
from gateway.tracing.traces import RecentTraces
from mesh.config.config_checks import ConfigError
from mesh.config.model_config import ServedModelConfig
from mesh.config.services import GatewayConfig
from mesh.network.grpc_network import GrpcNetwork
from mesh.network.grpc_server import AddServices
from mesh.network.interface import Listening, Network
from mesh.network.logged_network import with_message_log
from mesh.network.mesh_token import MeshToken, mesh_token
from mesh.network.tls import tls_files
from mesh.rules import RULES, Rules
from mesh.sessions.serving import run_together
from mesh.telemetry.spans import Telemetry
from mesh.timing.loop_delay import watch_delay

LoadedAssets = tuple[ServedModelConfig, Assets]

log = logging.getLogger("baton.gateway")

SWITCH_SECONDS = 0.001  # for which a thread that renders or parses may keep Python's lock from the event loop


async def serve(config: GatewayConfig, telemetry: Telemetry, *, rules: Rules = RULES) -> None:
    """Serve until cancelled, or until SIGTERM has come and running answers have ended (gateway/process/leaving.py)."""
    if config.model is None:
        raise ConfigError("gateway.model is missing: set it to a Hugging Face model folder")
    token = mesh_token(config, "gateway.worker_address", config.own_worker_address)
    bound_free_memory()
    random = SystemRandom()
    loaded = [(each, await asyncio.to_thread(load_served, config, each)) for each in config.served]
    models = AssetsByName({name: one for each, one in loaded for name in each.names})
    metrics = MetricsByModel({one.name: one.context_tokens for _, one in loaded}) if config.metrics else None
    tenants = open_tenants(config.keys_file, asyncio.get_running_loop().time)
    traces = _traces(config, telemetry, models, random=random, tenants=tenants)
    network = _network(config, token, random=random, also=lambda server: admin(gateway, random)(server))
    observer = metrics.observer if metrics is not None else UNOBSERVED
    gateway = make_gateway(config, network, loaded, random=random, traces=traces, observer=observer, rules=rules)
    models.resolve_by(gateway.root)
    registry = await gateway.listen(config.own_worker_address)
    ui = Ui(gateway)
    receipts = _receipts(config, random)
    collector = _collector(config, telemetry, gateway, metrics, tenants) if metrics is not None else None
    batches = _batches(config, random)
    api = HttpApi(
        gateway,
        models,
        random=random,
        clock=time.time,
        traces=traces,
        receipts=receipts,
        also=_pages(config, gateway, traces=traces, collector=collector, receipts=receipts, ui=ui),
        tenants=tenants,
        loader=gateway.loading,
        stored=_stored(config),
        batches=batches,
    )
    siblings = Siblings(config.http_address, process=config.process or 0, processes=config.processes)
    whole = WholePages(api.app, api.unguarded, siblings) if config.processes > 1 else None
    app: ASGIApp = whole or api.app
    app = app if accepts_any_host(config) else KnownHosts(app, config.http_hosts)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what lives as long as the gateway is no work for the collector
    tls = http_tls(config)
    if whole is not None:
        await whole.listen()  # before the kernel spreads connections to this process
    public = services(gateway, models, random=random, traces=traces, load=lambda: load_of(gateway), receipts=receipts)
    guards = [GrpcGuard(tenants, count_error=gateway.count_error, random=random)] if tenants else []
    listening = await serve_grpc(config, public, serving=gateway.healthy(), guards=guards)
    http, ports = await open_http(app, config, listening, tls)
    names = ", ".join(gateway.models())
    log.info("gateway ready at http://%s grpc %s model %s", http.address, listening.address, names)
    try:
        serving = run_together(report_health(gateway, listening, registry), *_watches(metrics, tenants, api))
        await serve_until_left(gateway, serving, ports, drain_seconds=config.drain_seconds, leaves=api.leave)
    finally:
        ui.close()
        await ports.close()
        if whole is not None:
            await whole.close()
        await asyncio.gather(http.close(), listening.close())
        await api.aclose()
        if batches is not None:
            await batches.aclose()
        await gateway.aclose()
        await registry.close()


async def report_health(gateway: Gateway, *ports: Listening) -> None:
    """Give health checks over gRPC the same answer as `GET /health`, for as long as the service lives."""
    while True:
        seen = gateway.changed.count
        for listening in ports:
            await listening.set_serving(gateway.healthy())
        await gateway.changed.after(seen)


# ---- the parts of the process, in the order in which they are made


def load_served(config: GatewayConfig, model: ServedModelConfig) -> Assets:
    assert model.model is not None, "the configuration names a folder for each model"
    return load_assets(
        model.model,
        model.names[0],
        datetime.now,
        context_tokens=model.context_tokens,
        tool_format=model.tool_format,
        reasoning=model.reasoning_format,
        client_templates=config.client_templates,
    )


def _traces(
    config: GatewayConfig, telemetry: Telemetry, models: AssetsByName, *, random: Random, tenants: Tenants | None
) -> RecentTraces:
    traces = RecentTraces(
        telemetry,
        random=Random(random.getrandbits(64)),
        service=config.own_name,
        limits=Limits(config.slo_ttft_ms / 1000 or None, config.slo_itl_ms / 1000 or None),
        admission=OPEN if tenants is None else UNKNOWN,
    )
    if config.log_content:
        traces.show_content(lambda ids, model: models.of(model).tokenizer.decode(ids))
    return traces


def _network(config: GatewayConfig, token: MeshToken | None, *, random: Random, also: AddServices) -> Network:
    network = GrpcNetwork(
        tls=tls_files(config),
        token=token,
        sidecar=config.sidecar,
        setting="gateway.worker_address",
        also=also,
    )
    incarnation = random.getrandbits(64)
    return with_message_log(network, config.message_log, tier="gateway", name=config.own_name, incarnation=incarnation)


def make_gateway(
    config: GatewayConfig,
    network: Network,
    loaded: Sequence[LoadedAssets],
    *,
    random: Random,
    traces: RecentTraces,
    observer: RequestObserver = UNOBSERVED,
    rules: Rules = RULES,
) -> Gateway:
    return Gateway(
        network,
        random=random,
        traces=traces,
        model=ServedModels(
            ServedModel(
                each.names,
                each.folder_name,
                one.vocabulary,
                one.context_tokens,
                tuple(adapter.name for adapter in each.adapters),
            )
            for each, one in loaded
        ),
        local=Local(config.local),
        max_waiting=config.max_waiting,
        limits=config,
        observer=observer,
        rules=rules,
    )


def _receipts(config: GatewayConfig, random: Random) -> Receipts:
    return Receipts(
        config.receipts_folder or config.cache_folder / "receipts",
        random=random,
        clock=time.time,
        version=package_version(),
        seconds=config.receipt_seconds,
        most_bytes=config.receipts_mib * 2**20,
    )


def _stored(config: GatewayConfig) -> StoredResponses | None:
    if not config.responses_mib:
        return None
    return StoredResponses(
        config.responses_folder or config.cache_folder / "responses",
        seconds=config.response_days * 86400,
        most_bytes=config.responses_mib * 2**20,
        clock=time.time,
    )


def _batches(config: GatewayConfig, random: Random) -> BatchStore | None:
    if not config.files_mib:
        return None
    folder = config.files_folder or config.cache_folder / "files"
    bounds = FileBounds(config.files_mib * 2**20, config.files_share)
    return BatchStore(folder, bounds, days=config.file_days, clock=time.time, random=random)


def _collector(
    config: GatewayConfig, telemetry: Telemetry, gateway: Gateway, metrics: MetricsByModel, tenants: Tenants | None
) -> MeshCollector:
    return MeshCollector(
        gateway,
        metrics,
        name=config.own_name,
        vllm=config.metrics_compat == "vllm",
        clock=asyncio.get_running_loop().time,
        spans_dropped=lambda: telemetry.counts().get("spans_dropped", 0),
        tenants=tenants,
        process=config.process if config.processes > 1 else None,
    )


def _pages(
    config: GatewayConfig,
    gateway: Gateway,
    *,
    traces: RecentTraces,
    collector: MeshCollector | None,
    receipts: Receipts,
    ui: Ui,
) -> list[BaseRoute]:
    """Routes that show the gateway itself, beside those of the dialects."""
    pages = list[BaseRoute](debug_routes(traces, time.time))
    pages += page_routes(partial(view_of_pages, gateway))
    pages += metrics_routes(collector, wall=time.time) if collector is not None else ()
    pages += receipt_routes(receipts)
    pages += ui.routes() if config.ui else ()
    return pages


def _watches(
    metrics: MetricsByModel | None, tenants: Tenants | None, api: HttpApi
) -> Iterator[Coroutine[Any, Any, None]]:
    """Tasks that run beside the servers, for as long as these do."""
    if metrics is not None:
        yield watch_delay(metrics.all.loop_delay.of().observe)
    if tenants is not None:
        yield tenants.watch()
    if api.batch_work is not None:
        yield api.batch_work.run()
