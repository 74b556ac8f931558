"""An Envoy shows people its access log lines, spans, and statistics on its admin port.

Only Envoys that carry requests of clients trace: the streams inside the mesh live for hours and carry all requests,
whose spans the services record themselves."""

from typing import Any

from cli.envoy.access import HEALTH
from cli.envoy.clusters import COLLECTOR, socket_address
from cli.envoy.document import extension, typed
from cli.envoy.proxy import Proxy

COMMON_FIELDS = {
    "time": "%START_TIME%",
    "method": "%REQ(:METHOD)%",
    "path": "%PATH(NQ)%",  # without the query
    "authority": "%REQ(:AUTHORITY)%",
    "status": "%RESPONSE_CODE%",
    "grpc_status": "%GRPC_STATUS%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "duration_ms": "%DURATION%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "upstream": "%UPSTREAM_HOST%",
    "upstream_cluster": "%UPSTREAM_CLUSTER%",
    "upstream_peer": "%UPSTREAM_PEER_URI_SAN%",
    "upstream_failure": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
}
REQUEST_FIELDS = {
    "trace_id": "%TRACE_ID%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "user_agent": "%REQ(USER-AGENT)%",
    "first_byte_ms": "%RESPONSE_DURATION%",
}
PEER_FIELDS = {
    "peer": "%DOWNSTREAM_PEER_URI_SAN%",
    "tls": "%DOWNSTREAM_TLS_VERSION%",
    "tls_failure": "%DOWNSTREAM_TRANSPORT_FAILURE_REASON%",
}


def access_log(proxy: Proxy, *, requests: bool, peers: bool) -> list[dict[str, Any]]:
    """One JSON line per request or stream when it ends; nothing of prompts, answers or credentials. Health checks are
    left out unless they fail."""
    fields = {"proxy": proxy.own.path, **COMMON_FIELDS}
    fields |= REQUEST_FIELDS if requests else {}
    fields |= PEER_FIELDS if peers else {}
    health = {"name": ":path", "string_match": {"prefix": HEALTH}, "invert_match": True}
    failed = {"comparison": {"op": "GE", "value": {"default_value": 400, "runtime_key": "access_log.status"}}}
    either = [{"header_filter": {"header": health}}, {"status_code_filter": failed}]
    log = extension(
        "envoy.access_loggers.file",
        "access_loggers.file.v3.FileAccessLog",
        path=proxy.access_log,
        log_format={"json_format": fields},
    )
    return [{**log, "filter": {"or_filter": {"filters": either}}}]


def tracing(proxy: Proxy) -> dict[str, Any]:
    """A span for the request and, below it, one for each attempt upstream; the W3C context of the caller is the parent,
    and its decision whether to sample holds."""
    name = proxy.own.name if proxy.is_edge else f"{proxy.own.name}-sidecar"
    collector = {"envoy_grpc": {"cluster_name": COLLECTOR}, "timeout": "1s"}
    config = typed("config.trace.v3.OpenTelemetryConfig", grpc_service=collector, service_name=name)
    return {
        "spawn_upstream_span": True,
        "random_sampling": {"value": proxy.sampled_percent},
        "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": config},
    }


def admin(proxy: Proxy) -> dict[str, Any]:
    """The port can stop this Envoy and shows its configuration, so it is on loopback unless --admin says otherwise.
    Statistics for Prometheus are at /stats/prometheus."""
    return {"address": socket_address(proxy.admin)}
