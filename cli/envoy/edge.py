"""The edge: clients come in over TLS with HTTP/2 or HTTP/1.1, and only the API goes on to a gateway.

A request is sent again only where no gateway can have begun with it: the connection failed, the stream was refused
before it was read, or a gateway answered that another one should be tried. An answer that has begun never starts
anew."""

from typing import Any

from cli.envoy.access import API, HEALTH, ORDERS, PUBLIC, REFLECTION
from cli.envoy.clusters import GATEWAYS, socket_address
from cli.envoy.document import extension, typed
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
from cli.envoy.secrets import public_tls

_IDLE_SECONDS = 60  # so long a connection without a request stays open
_UPLOAD_SECONDS = 30  # so long a request may take to arrive
_UNREAD_SECONDS = 30  # so long an answer that is complete waits for a client that does not read
_KIBIBYTE = 1024
_BUFFER, _BUFFER_KIND = "envoy.filters.http.buffer", "filters.http.buffer.v3.Buffer"
FORGED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")


def edge(proxy: Proxy) -> dict[str, Any]:
    traced = {"tracing": tracing(proxy)} if proxy.collector else {}
    manager = connection_manager(
        "edge",
        codec_type="AUTO",
        common_http_protocol_options={"max_headers_count": HEADERS, "idle_timeout": f"{_IDLE_SECONDS}s"},
        http2_protocol_options=_http2(),
        request_headers_timeout="10s",
        request_timeout=f"{_UPLOAD_SECONDS}s",  # for the whole request to arrive, not for its answer
        stream_flush_timeout=f"{_UNREAD_SECONDS}s",  # a shut window cannot make this Envoy keep answers
        use_remote_address=True,  # the client's address comes from its connection, not from its headers
        early_header_mutation_extensions=[_without_forged_headers()],
        forward_client_cert_details="SANITIZE",
        **request_ids(),
        **traced,
        access_log=access_log(proxy, requests=True, peers=False),
        local_reply_config=own_errors(),
        filters=[extension(_BUFFER, _BUFFER_KIND, max_request_bytes=proxy.body_bytes)],
        routes=_routes(proxy),
    )
    return {
        "name": "edge",
        "address": socket_address(proxy.listen),
        "socket_options": keepalive_options(),
        "per_connection_buffer_limit_bytes": 64 * _KIBIBYTE,
        "filter_chains": [
            {
                "transport_socket_connect_timeout": "10s",
                "transport_socket": public_tls(proxy),
                "filters": [manager],
            }
        ],
    }


def _routes(proxy: Proxy) -> dict[str, Any]:
    retries = _retries(gateways=len(proxy.tier("gateway")))
    paths = [path for path in (*API, *proxy.routes) if path != REFLECTION]
    routes: list[Any] = [to_cluster(_match(path), GATEWAYS, retry_policy=retries) for path in paths]
    forbidden = refusal(403, "operators call this at the gateway itself")
    routes = [{**forbidden, "match": {"prefix": path}} for path in ORDERS] + routes
    unbuffered = {"typed_per_filter_config": {_BUFFER: typed(f"extensions.{_BUFFER_KIND}PerRoute", disabled=True)}}
    untraced = {"tracing": {"overall_sampling": {"numerator": 0}}}
    for path in (HEALTH, REFLECTION):
        routes.append({**to_cluster(_match(path), GATEWAYS), **untraced, **unbuffered})
    routes.append({**refusal(404, "no such path; the API begins with /v1/"), **unbuffered})
    name = {"header": {"key": "x-request-id", "value": "%REQ(X-REQUEST-ID)%"}, "append_action": "ADD_IF_ABSENT"}
    return {
        "virtual_hosts": [virtual_host("api", ["*"], routes)],
        "response_headers_to_add": [name],  # Envoy's own errors carry the request's name, too
    }


def _match(path: str) -> dict[str, Any]:
    """A path of a gRPC service is for gRPC alone: a gateway resets anything else, which would look like its fault."""
    match path:
        case "/health":
            return {"path": path}
        case _ if path in (*PUBLIC, HEALTH, REFLECTION):
            return {"prefix": path, "grpc": {}}
        case _:
            return {"prefix": path}


def _http2() -> dict[str, Any]:
    """Windows that let a client hold little of this Envoy's memory."""
    windows = {"initial_stream_window_size": 256 * _KIBIBYTE, "initial_connection_window_size": 1024 * _KIBIBYTE}
    return http2_options(128) | windows


def _retries(*, gateways: int) -> dict[str, Any]:
    """With several gateways, also a refusal that invites to try again, at a gateway that has not refused."""
    conditions = "connect-failure,refused-stream,reset-before-request"
    policy: dict[str, Any] = {"retry_on": conditions, "num_retries": 2}
    if gateways == 1:
        return policy
    kind = "retry.host.previous_hosts.v3.PreviousHostsPredicate"
    return policy | {
        "retry_on": f"{conditions},retriable-headers",
        "retriable_headers": [{"name": "x-should-retry", "string_match": {"exact": "true"}}],
        "retry_host_predicate": [extension("envoy.retry_host_predicates.previous_hosts", kind)],
        "host_selection_retry_max_attempts": 5,
    }


def _without_forged_headers() -> dict[str, Any]:
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        "http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[
            *({"remove": name} for name in FORGED),
            {"remove_on_match": {"key_matcher": {"prefix": "x-envoy-"}}},
        ],
    )
