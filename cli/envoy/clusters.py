"""Where an Envoy sends requests: one cluster per peer with a breaker of its own, and the service on loopback.

Streams inside the mesh live as long as their processes, so nothing here ends them by a timer. What notices a dead peer:
health checks, calls that fail (outlier detection), and pings on connections whose host has vanished."""

import ipaddress
from typing import Any

from baton.worker.v1 import worker_pb2
from cli.envoy.document import extension, typed
from cli.envoy.members import Member
from cli.envoy.proxy import Proxy
from cli.envoy.secrets import outbound_tls
from mesh.config.config_checks import split_address

REGISTRY = worker_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name

GATEWAYS, LOCAL_GRPC, LOCAL_REGISTRY, LOCAL_HTTP = "gateways", "local_grpc", "local_registry", "local_http"
COLLECTOR, ADMIN = "collector", "admin"
PINGS = {"interval": "5s", "timeout": "5s"}  # like the lease between two services
MANY_STREAMS = 1_000_000  # the services limit themselves


def clusters(proxy: Proxy) -> list[Any]:
    found: list[Any] = []
    if proxy.is_edge:
        found.append(_gateways(proxy))
    else:
        found += [_peer(proxy, member) for member in proxy.peers()]
        found.append(_local(LOCAL_GRPC, proxy.local_grpc, _http2()))
        if proxy.local_http:
            found.append(_local(LOCAL_REGISTRY, proxy.local_registry, _http2()))
            found.append(_local(LOCAL_HTTP, proxy.local_http, _http1()))
    if proxy.probe:
        found.append(_local(ADMIN, proxy.admin, _http1()))
    if proxy.collector:
        found.append({**_address(COLLECTOR, (proxy.collector,)), **_protocol(_http2())})
    return found


def _peer(proxy: Proxy, member: Member) -> dict[str, Any]:
    """Exactly one member, so that no call meant for it can reach another one."""
    return {
        **_address(member.path, (member.address,)),
        **_protocol(_http2()),
        "transport_socket": outbound_tls(proxy, (member.identity(proxy.trust_domain),)),
        "health_checks": [_health_check(member.address, REGISTRY if member.tier == "gateway" else "")],
        "outlier_detection": _outliers(),
        # While its only member is out, the cluster refuses calls at once; otherwise Envoy would still try it.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "circuit_breakers": _limits(connections=64, requests=4096),
    }


def _gateways(proxy: Proxy) -> dict[str, Any]:
    """All gateways: any of them serves any client."""
    members = proxy.tier("gateway")
    return {
        **_address(GATEWAYS, tuple(member.address for member in members)),
        **_protocol(_http2(_CLIENTS_WINDOWS)),
        "lb_policy": "LEAST_REQUEST",
        "transport_socket": outbound_tls(proxy, proxy.identities("gateway")),
        "health_checks": [_health_check(GATEWAYS, "")],
        # What a gateway answers may be a client's doing, so only connections that fail and health checks count.
        "outlier_detection": _outliers(answers=False),
        # If most gateways look unhealthy, all are tried: one without workers still lets requests wait, and answers with
        # a better reason than Envoy's.
        "common_lb_config": {"healthy_panic_threshold": {"value": 50}},
        "circuit_breakers": _limits(connections=64, requests=proxy.connections * 4),
    }


def _local(name: str, address: str, protocol: dict[str, Any]) -> dict[str, Any]:
    limits = _limits(connections=4096, requests=MANY_STREAMS)
    return {**_address(name, (address,)), **_protocol(protocol), "circuit_breakers": limits}


def _address(name: str, addresses: tuple[str, ...]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": socket_address(address)}} for address in addresses]
    cluster: dict[str, Any] = {"name": name, "connect_timeout": "2s"}
    if all(_is_ip(address) for address in addresses):
        cluster["type"] = "STATIC"
    else:
        cluster["cluster_type"] = _resolved()
    return cluster | {"load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}}


def _resolved() -> dict[str, Any]:
    """A name that does not resolve yet is asked for again."""
    return extension(
        "envoy.clusters.dns",
        "clusters.dns.v3.DnsCluster",
        dns_lookup_family="V4_PREFERRED",
        dns_refresh_rate="5s",
        dns_failure_refresh_rate={"base_interval": "1s", "max_interval": "5s"},
    )


def _protocol(options: dict[str, Any]) -> dict[str, Any]:
    kind = "extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": typed(kind, **options)
        }
    }


_CLIENTS_WINDOWS = {
    "initial_stream_window_size": 2**16,  # an answer that its client does not read stops here, and no other one
    "initial_connection_window_size": 2**28,
}


def _http2(windows: dict[str, Any] | None = None) -> dict[str, Any]:
    options = {"max_concurrent_streams": MANY_STREAMS, "connection_keepalive": PINGS, **(windows or {})}
    return {"explicit_http_config": {"http2_protocol_options": options}}


def _http1() -> dict[str, Any]:
    return {
        # Less than the 5 s after which the server closes idle connections: a request must not meet a closing one.
        "common_http_protocol_options": {"idle_timeout": "3s"},
        "explicit_http_config": {"http_protocol_options": {}},
    }


def _health_check(authority: str, service: str) -> dict[str, Any]:
    """A gateway as a whole is unhealthy until it has workers; its registry, by which it gets them, is not."""
    return {
        "timeout": "2s",
        "interval": "2s",
        "no_traffic_interval": "1s",
        "unhealthy_interval": "0.5s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {"authority": authority} | ({"service_name": service} if service else {}),
    }


def _outliers(*, answers: bool = True) -> dict[str, Any]:
    """Three failed calls in a row open the breaker for a second, then longer each time. `answers`: so do answers 502,
    503 and 504, as those of a sidecar whose service is gone."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 3,
        "consecutive_gateway_failure": 3,
        "enforcing_consecutive_gateway_failure": 100 if answers else 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_success_rate": 0,
        "enforcing_local_origin_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": "1s",
        "max_ejection_time": "10s",
        "max_ejection_percent": 100,
    }


def _limits(*, connections: int, requests: int) -> dict[str, Any]:
    limits = {"max_connections": connections, "max_requests": requests, "max_pending_requests": requests}
    return {"thresholds": [{**limits, "max_retries": 16, "track_remaining": True}]}


def socket_address(address: str) -> dict[str, Any]:
    host, port = split_address(address)
    return {"socket_address": {"address": host, "port_value": port}}


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(split_address(address)[0])
    except ValueError:
        return False
    return True
