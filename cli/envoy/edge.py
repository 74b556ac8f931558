"""The edge: clients come in over TLS with HTTP/2 or HTTP/1.1, and only the API goes on to a gateway.

A request is sent again only where no gateway can have begun with it: the connection failed, the stream was refused
before it was read, or a gateway answered that another one should be tried. An answer that has begun never starts
anew."""

from typing import Any

from cli.envoy.access import API, HEALTH, REFLECTION
from cli.envoy.clusters import GATEWAYS, socket_address
from cli.envoy.document import Noted, extension, typed
from cli.envoy.http import (
    HEADERS,
    connection_manager,
    http2_options,
    keepalive_options,
    refusal,
    router,
    to_cluster,
    virtual_host,
)
from cli.envoy.observe import access_log, tracing
from cli.envoy.proxy import Proxy
from cli.envoy.secrets import public_tls

BODY_BYTES = 32 * 2**20  # as much as the gateway takes
_BUFFER, _BUFFER_KIND = "envoy.filters.http.buffer", "filters.http.buffer.v3.Buffer"
FORGED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-port", "x-forwarded-proto", "x-real-ip")


def edge(proxy: Proxy) -> dict[str, Any]:
    traced = {"tracing": tracing(proxy)} if proxy.collector else {}
    manager = connection_manager(
        "edge",
        codec_type="AUTO",
        common_http_protocol_options={"max_headers_count": HEADERS, "idle_timeout": "300s"},
        http2_protocol_options=http2_options(128),
        request_headers_timeout="10s",
        request_timeout=Noted("For the whole request to arrive, not for its answer.", "60s"),
        use_remote_address=Noted("The client's address comes from its connection, not from its headers.", True),
        early_header_mutation_extensions=[_without_forged_headers()],
        forward_client_cert_details="SANITIZE",
        preserve_external_request_id=Noted("A client may name its request; the gateway answers by that name.", True),
        request_id_extension={"typed_config": _request_ids()},
        **traced,
        access_log=access_log(proxy, requests=True, peers=False),
        local_reply_config=Noted("Envoy's own errors, in the form that OpenAI's clients read.", _own_errors()),
        filters=[extension(_BUFFER, _BUFFER_KIND, max_request_bytes=BODY_BYTES)],
        routes=_routes(proxy),
    )
    manager["typed_config"]["http_filters"][-1] = router(suppress_envoy_headers=True)
    return {
        "name": "edge",
        "address": socket_address(proxy.listen),
        "socket_options": keepalive_options(),
        "per_connection_buffer_limit_bytes": 1 << 20,
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
    matches = ({"path" if path == "/health" else "prefix": path} for path in paths)
    routes: list[Any] = [to_cluster(match, GATEWAYS, retry_policy=retries) for match in matches]
    unbuffered = {_BUFFER: typed(f"extensions.{_BUFFER_KIND}PerRoute", disabled=True)}
    untraced = {"tracing": {"overall_sampling": {"numerator": 0}}, "typed_per_filter_config": unbuffered}
    for path in (HEALTH, REFLECTION):
        routes.append({**to_cluster({"prefix": path}, GATEWAYS), **untraced})
    routes.append(refusal(404, "no such path; the API begins with /v1/"))
    name = {"header": {"key": "x-request-id", "value": "%REQ(X-REQUEST-ID)%"}, "append_action": "ADD_IF_ABSENT"}
    return {
        "virtual_hosts": [virtual_host("api", ["*"], routes)],
        "response_headers_to_add": Noted("Envoy's own errors carry the request's name, too.", [name]),
    }


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


def _request_ids() -> dict[str, Any]:
    config = extension(
        "", "request_id.uuid.v3.UuidRequestIdConfig", pack_trace_reason=False, use_request_id_for_trace_sampling=False
    )
    ids: dict[str, Any] = config["typed_config"]
    return ids


def _own_errors() -> dict[str, Any]:
    """A gRPC client gets a status instead, with the same text."""
    grpc = {"name": "content-type", "string_match": {"prefix": "application/grpc"}, "invert_match": True}
    error = {
        "message": "%LOCAL_REPLY_BODY%",
        "type": "server_error",
        "code": "%RESPONSE_CODE%",
        "reason": "%RESPONSE_CODE_DETAILS%",
    }
    mapper = {
        "filter": {"header_filter": {"header": grpc}},
        "body_format_override": {"json_format": {"error": error}},
    }
    return {"mappers": [mapper]}
