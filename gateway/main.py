"""The gateway as a process: both front doors over the core. HTTP, clients of the gRPC API, and workers have
a port each."""

import asyncio
import gc
import logging
import sys
import time
from collections.abc import Coroutine, Sequence
from datetime import datetime
from random import Random, SystemRandom
from typing import Any

from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from gateway.grpc.admin import admin
from gateway.grpc.api import services
from gateway.grpc.load import load_of
from gateway.grpc.server import serve_grpc
from gateway.http.api import HttpApi
from gateway.http.hosts import KnownHosts, accepts_any_host
from gateway.http.server import serve_http
from gateway.http.tls import http_tls
from gateway.http.whole_pages import WholePages
from gateway.leaving import serve_until_left
from gateway.memory import bound_free_memory
from gateway.observability.debug import debug_routes
from gateway.observability.export import MeshCollector
from gateway.observability.limits import Limits
from gateway.observability.metrics import GatewayMetrics
from gateway.observability.metrics_page import metrics_routes
from gateway.observability.observer import UNOBSERVED
from gateway.observability.traces import RecentTraces
from gateway.observability.ui import Ui
from gateway.router import Local
from gateway.service import Gateway
from gateway.siblings import Siblings
from gateway.text.assets import load_assets
from mesh.config import ConfigError, GatewayConfig
from mesh.grpc_network import GrpcNetwork
from mesh.loop_delay import watch_delay
from mesh.network import Listening
from mesh.rules import RULES, Rules
from mesh.serving import run_together
from mesh.telemetry import Telemetry
from mesh.tls import tls_files

log = logging.getLogger("baton.gateway")

SWITCH_SECONDS = 0.001  # for which a thread that renders or parses may keep Python's lock from the event loop


async def serve(config: GatewayConfig, telemetry: Telemetry, *, rules: Rules = RULES) -> None:
    """Serve until cancelled, or until SIGTERM has come and running answers have ended (gateway/leaving.py)."""
    if config.model is None:
        raise ConfigError("gateway.model is missing: set it to a Hugging Face model folder")
    bound_free_memory()
    random, metrics = SystemRandom(), GatewayMetrics() if config.metrics else None
    assets = await asyncio.to_thread(
        load_assets,
        config.model,
        config.model_name,
        datetime.now,
        context_tokens=config.context_tokens,
        tool_format=config.tool_format,
        reasoning=config.reasoning_format,
        client_templates=config.client_templates,
    )

    def add_admin(server: Any) -> Sequence[str]:
        return admin(gateway, random)(server)

    traces = RecentTraces(
        telemetry,
        random=Random(random.getrandbits(64)),
        service=config.name,
        limits=Limits(config.slo_ttft_ms / 1000 or None, config.slo_itl_ms / 1000 or None),
    )
    if config.log_content:
        traces.show_content(assets.tokenizer.decode)
    gateway = Gateway(
        GrpcNetwork(tls=tls_files(config), sidecar=config.sidecar, setting="gateway.worker_address", also=add_admin),
        random=random,
        traces=traces,
        model=config.model_name,
        local=Local(config.local),
        max_waiting=config.max_waiting,
        limits=config,
        observer=metrics or UNOBSERVED,
        rules=rules,
    )
    registry = await gateway.listen(config.own_worker_address)
    ui = Ui(gateway)
    pages, watch = list[BaseRoute](debug_routes(traces, time.time)), list[Coroutine[Any, Any, None]]()
    if metrics is not None:
        collector = MeshCollector(
            gateway,
            metrics,
            name=config.name,
            context_tokens=assets.context_tokens,
            vllm=config.metrics_compat == "vllm",
            clock=asyncio.get_running_loop().time,
            spans_dropped=lambda: telemetry.counts().get("spans_dropped", 0),
            process=config.process if config.processes > 1 else None,
        )
        pages += metrics_routes(collector, wall=time.time)
        watch.append(watch_delay(metrics.loop_delay.of().observe))
    pages += ui.routes() if config.ui else ()
    api = HttpApi(gateway, assets, random=random, clock=time.time, traces=traces, also=pages)
    siblings = Siblings(config.http_address, process=config.process or 0, processes=config.processes)
    whole = WholePages(api.app, siblings) if config.processes > 1 else None
    app: ASGIApp = whole or api.app
    app = app if accepts_any_host(config) else KnownHosts(app, config.http_hosts)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what lives as long as the gateway is no work for the collector
    tls = http_tls(config)
    shared = config.processes > 1
    http = await serve_http(
        app, config.http_address, setting="gateway.http_address", limits=config, tls=tls, shared=shared
    )
    if whole is not None:
        await whole.listen()
    public = services(gateway, assets, random=random, traces=traces, load=lambda: load_of(gateway))
    listening = await serve_grpc(config, public, serving=gateway.healthy())
    log.info("gateway ready at http://%s grpc %s model %s", http.address, listening.address, config.model_name)
    try:
        serving = run_together(report_health(gateway, listening, registry), *watch)
        await serve_until_left(gateway, serving, drain_seconds=config.drain_seconds)
    finally:
        ui.close()
        if whole is not None:
            await whole.close()
        await asyncio.gather(http.close(), listening.close())
        await api.aclose()
        await gateway.aclose()
        await registry.close()


async def report_health(gateway: Gateway, *ports: Listening) -> None:
    """Give health checks over gRPC the same answer as `GET /health`, for as long as the service lives."""
    while True:
        seen = gateway.changed.count
        for listening in ports:
            await listening.set_serving(gateway.healthy())
        await gateway.changed.after(seen)
