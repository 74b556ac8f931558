"""All HTTP listeners of an Envoy share a connection manager, and limits that no listener goes without.

Answers stream for minutes and sessions for hours, so no request has a time limit here: the services and their clients
end what takes too long."""

from typing import Any

from cli.envoy.clusters import PINGS
from cli.envoy.document import extension, typed

HEADER_KILOBYTES = 32
HEADERS = 100
UNLIMITED = "0s"

_SOCKET, _TCP = 1, 6  # SOL_SOCKET, IPPROTO_TCP of Linux
_KEEPALIVE, _IDLE, _INTERVAL, _COUNT = 9, 4, 5, 6  # SO_KEEPALIVE; TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT


def connection_manager(name: str, *, filters: list[Any], routes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return extension(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        stream_idle_timeout=UNLIMITED,  # a stream may be silent for as long as the model computes
        max_request_headers_kb=HEADER_KILOBYTES,
        normalize_path=True,  # what the rules see is what the service sees
        merge_slashes=True,
        **more,
        route_config=routes,
        http_filters=[*filters, _router()],
    )


def _router() -> dict[str, Any]:
    """No client learns from headers what lies behind."""
    return extension("envoy.filters.http.router", "filters.http.router.v3.Router", suppress_envoy_headers=True)


def http2_options(streams: int, *, pings: bool = True) -> dict[str, Any]:
    keepalive = {"connection_keepalive": PINGS} if pings else {}
    return {"max_concurrent_streams": streams, "allow_connect": False, **keepalive}


def virtual_host(name: str, domains: list[str], routes: list[Any]) -> dict[str, Any]:
    return {"name": name, "domains": domains, "routes": routes}


def to_cluster(match: dict[str, Any], cluster: str, **more: Any) -> dict[str, Any]:
    return {"match": match, "route": {"cluster": cluster, "timeout": UNLIMITED, **more}}


def refusal(status: int, reason: str) -> dict[str, Any]:
    """Answers every request that no route before it takes."""
    return {"match": {"prefix": "/"}, "direct_response": {"status": status, "body": {"inline_string": reason}}}


def request_ids() -> dict[str, Any]:
    """A request keeps the name that its client gave it, in any form; without one it gets a UUID. By default Envoy would
    write into the name whether the request is traced, and trace none whose name is no UUID."""
    kind = "extensions.request_id.uuid.v3.UuidRequestIdConfig"
    config = typed(kind, pack_trace_reason=False, use_request_id_for_trace_sampling=False)
    return {"preserve_external_request_id": True, "request_id_extension": {"typed_config": config}}


def own_errors(*, unsent_may_be_retried: bool = False) -> dict[str, Any]:
    """Envoy's own errors, in the form that OpenAI's clients read. A gRPC client gets a status instead, with the same
    text. `unsent_may_be_retried`: a request whose service took no connection was not begun, so the edge may send it to
    another gateway."""
    grpc = {
        "name": "content-type",
        "string_match": {"prefix": "application/grpc"},
        "invert_match": True,
        "treat_missing_header_as_empty": True,
    }
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
    mappers = [mapper]
    if unsent_may_be_retried:
        header = {"header": {"key": "x-should-retry", "value": "true"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        unsent = {"response_flag_filter": {"flags": ["UF", "UH"]}}
        both = {"and_filter": {"filters": [unsent, mapper["filter"]]}}
        mappers = [
            {**mapper, "filter": both, "headers_to_add": [header]},
            {"filter": unsent, "headers_to_add": [header]},
            mapper,
        ]
    return {"mappers": mappers}


def keepalive_options() -> list[dict[str, Any]]:
    """TCP finds within 40 s that the host at the other end has vanished; accepted connections inherit it."""
    options = ((_SOCKET, _KEEPALIVE, 1), (_TCP, _IDLE, 10), (_TCP, _INTERVAL, 10), (_TCP, _COUNT, 3))
    return [
        {"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"} for level, name, value in options
    ]
