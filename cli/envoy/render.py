"""Puts one Envoy's configuration together: `render` returns the text that `baton envoy render` prints."""

from typing import Any

from cli.envoy.clusters import ADMIN, LOCAL_GRPC, LOCAL_HTTP, clusters, socket_address
from cli.envoy.document import extension, typed, written
from cli.envoy.edge import edge
from cli.envoy.http import connection_manager, http2_options, refusal, to_cluster, virtual_host
from cli.envoy.observe import admin
from cli.envoy.proxy import Proxy
from cli.envoy.secrets import static_secrets, watched_secrets
from cli.envoy.sidecar import inbound, outbound

_HEADER = """{what} Rendered by `baton envoy render`; change the options there, not this file.
Start it with: envoy -c FILE --concurrency {threads}"""
_TRACKED_POWER = 18  # streams that hold 2**18 bytes or more are the first that memory is taken from
_SECRETS_HEADER = """Written by `baton envoy secrets`.
Envoy reads the PEM files again when one is moved into their folder: write new ones beside them and rename those."""


def render(proxy: Proxy) -> str:
    identity = proxy.own.identity(proxy.trust_domain)
    what = f"Envoy at the edge of a Baton mesh, {identity}." if proxy.is_edge else f"Sidecar of {identity}."
    return written(bootstrap(proxy), _HEADER.format(what=what, threads=2 if proxy.is_edge else 1))


def render_secrets(certificate: str, key: str, ca: str) -> dict[str, str]:
    """The files of a folder for --secrets, by their names."""
    return {name: written(secret, _SECRETS_HEADER) for name, secret in watched_secrets(certificate, key, ca).items()}


def bootstrap(proxy: Proxy) -> dict[str, Any]:
    listeners: list[Any] = [edge(proxy)] if proxy.is_edge else [inbound(proxy), outbound(proxy)]
    if proxy.probe:
        listeners.append(_probe(proxy))
    resources: dict[str, Any] = {"listeners": listeners, "clusters": clusters(proxy)}
    if secrets := static_secrets(proxy):
        resources["secrets"] = secrets
    return {
        "node": {"id": proxy.own.path, "cluster": "baton"},
        "admin": admin(proxy),
        "static_resources": resources,
        "overload_manager": _overload(proxy),
    }


def _probe(proxy: Proxy) -> dict[str, Any]:
    """A plain-text listener for whoever has no certificate: kubelets, container engines, Prometheus. Read only."""
    routes = [to_cluster({"path": path}, ADMIN) for path in ("/ready", "/stats/prometheus")]
    if proxy.local_grpc:
        routes.append(to_cluster({"path": "/grpc.health.v1.Health/Check"}, LOCAL_GRPC))
    if proxy.local_http:
        routes += [to_cluster({"path": path}, LOCAL_HTTP) for path in ("/health", "/version", "/metrics")]
    manager = connection_manager(
        "probe",
        codec_type="AUTO",
        http2_protocol_options=http2_options(16),
        filters=[],
        routes={"virtual_hosts": [virtual_host("probe", ["*"], [*routes, refusal(404, "health and metrics only")])]},
    )
    return {
        "name": "probe",
        "address": socket_address(proxy.probe),
        "filter_chains": [{"filters": [manager]}],
        "ignore_global_conn_limit": True,
    }


def _overload(proxy: Proxy) -> dict[str, Any]:
    """Refuses work before memory runs out."""
    heap = "envoy.resource_monitors.fixed_heap"

    def at(share: float) -> list[dict[str, Any]]:
        return [{"name": heap, "threshold": {"value": share}}]

    heap_config = typed(
        "extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig", max_heap_size_bytes=proxy.heap_bytes
    )
    connections = extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=proxy.connections,
    )
    return {
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": _TRACKED_POWER},
        "refresh_interval": "0.25s",
        "resource_monitors": [{"name": heap, "typed_config": heap_config}, connections],
        "actions": [
            {"name": "envoy.overload_actions.shrink_heap", "triggers": at(0.9)},
            {
                "name": "envoy.overload_actions.reset_high_memory_stream",
                "triggers": [{"name": heap, "scaled": {"scaling_threshold": 0.75, "saturation_threshold": 0.95}}],
            },
            {"name": "envoy.overload_actions.stop_accepting_requests", "triggers": at(0.95)},
            {"name": "envoy.overload_actions.stop_accepting_connections", "triggers": at(0.98)},
        ],
    }
