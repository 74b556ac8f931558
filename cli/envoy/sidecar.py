"""The listeners of a sidecar: calls of the other members come in, calls of its own service go out.

Inbound terminates mutual TLS, checks who calls what, and passes on to the service on loopback. Outbound takes the
service's calls in plain text and chooses the peer by the exact authority; an unknown one is refused."""

from typing import Any

from cli.envoy.access import HEALTH, PUBLIC, REFLECTION, REGISTER, rbac_filter
from cli.envoy.clusters import LOCAL_GRPC, LOCAL_HTTP, LOCAL_REGISTRY, MANY_STREAMS, socket_address
from cli.envoy.http import (
    HEADERS,
    connection_manager,
    http2_options,
    keepalive_options,
    own_errors,
    refusal,
    request_ids,
    to_cluster,
    virtual_host,
)
from cli.envoy.observe import access_log, tracing
from cli.envoy.proxy import Proxy
from cli.envoy.secrets import inbound_tls
from mesh.network.sidecar_advice import UNKNOWN_PEER


def inbound(proxy: Proxy) -> dict[str, Any]:
    carries_requests = bool(proxy.local_http)
    for_clients: dict[str, Any] = {"generate_request_id": False}
    if carries_requests:
        for_clients = {**request_ids(), "local_reply_config": own_errors(unsent_may_be_retried=True)}
        for_clients |= {"tracing": tracing(proxy)} if proxy.collector else {}
    manager = connection_manager(
        "inbound",
        codec_type="HTTP2",
        common_http_protocol_options={"max_headers_count": HEADERS},
        http2_protocol_options=http2_options(MANY_STREAMS),
        forward_client_cert_details="SANITIZE",
        **for_clients,
        access_log=access_log(proxy, requests=carries_requests, peers=True),
        filters=[rbac_filter(proxy)],
        routes={"virtual_hosts": [virtual_host("service", ["*"], _inbound_routes(proxy))]},
    )
    return {
        "name": "inbound",
        "address": socket_address(proxy.listen),
        "socket_options": keepalive_options(),
        "filter_chains": [
            {
                "transport_socket_connect_timeout": "10s",
                "transport_socket": inbound_tls(proxy),
                "filters": [manager],
            }
        ],
    }


def _inbound_routes(proxy: Proxy) -> list[Any]:
    """At a gateway the path decides between its ports: only Register, and the health checks of the workers' Envoys,
    which name the gateway's address as authority, reach the port of the workers."""
    if not proxy.local_http:
        return [to_cluster({"prefix": "/"}, LOCAL_GRPC)]
    untraced = {"tracing": {"overall_sampling": {"numerator": 0}}}
    from_workers = {"name": ":authority", "string_match": {"exact": proxy.own.address}}
    return [
        {**to_cluster({"prefix": HEALTH, "headers": [from_workers]}, LOCAL_REGISTRY), **untraced},
        {**to_cluster({"prefix": HEALTH}, LOCAL_GRPC), **untraced},
        {**to_cluster({"path": REGISTER}, LOCAL_REGISTRY), **untraced},
        *(to_cluster({"prefix": path}, LOCAL_GRPC) for path in (*PUBLIC, REFLECTION)),
        to_cluster({"prefix": "/"}, LOCAL_HTTP),
    ]


def outbound(proxy: Proxy) -> dict[str, Any]:
    hosts = [
        virtual_host(member.path, [member.address], [to_cluster({"prefix": "/"}, member.path)])
        for member in proxy.peers()
    ]
    reason = f"{UNKNOWN_PEER}; its peers are {', '.join(member.address for member in proxy.peers()) or 'none'}"
    unknown = virtual_host("unknown", ["*"], [refusal(404, reason)])
    manager = connection_manager(
        "outbound",
        codec_type="HTTP2",
        http2_protocol_options=http2_options(MANY_STREAMS, pings=False),
        access_log=access_log(proxy, requests=False, peers=False),
        filters=[],
        routes={"virtual_hosts": [*hosts, unknown]},  # never another peer in place of the one that was named
    )
    return {
        "name": "outbound",
        "address": socket_address(proxy.outbound),
        "filter_chains": [{"filters": [manager]}],
    }
