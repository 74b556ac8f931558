"""An inbound listener admits exact SPIFFE ids on exact paths and refuses every other call.

The TLS handshake admits members of the trust domain only; this filter decides between them. Envoy counts its refusals
as `rbac.denied`."""

from typing import Any

from baton.inference.v1 import inference_pb2
from baton.kv.v1 import kv_pb2
from baton.vllm.v1 import vllm_pb2
from baton.worker.v1 import worker_pb2
from cli.envoy.document import extension
from cli.envoy.proxy import Proxy

PUBLIC = (
    f"/{inference_pb2.DESCRIPTOR.package}.",
    f"/{vllm_pb2.DESCRIPTOR.package}.",
)
REGISTER = "/{}/Register".format(worker_pb2.DESCRIPTOR.services_by_name["RegistryService"].full_name)
ATTACH = "/{}/Attach".format(worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name)
STATS = "/{}/Stats".format(worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name)
SESSION = "/{}/Session".format(kv_pb2.DESCRIPTOR.services_by_name["KvService"].full_name)
HEALTH = "/grpc.health.v1.Health/"
REFLECTION = "/grpc.reflection."
API = ("/v1/", "/health", *PUBLIC, REFLECTION)  # what clients may call, without what operators look at
ORDERS = (
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
)  # operators send these: they lie below, and do not pass the edge


def rbac_filter(proxy: Proxy) -> dict[str, Any]:
    """The filter of this Envoy's inbound listener; the edge has none, because its clients show no certificate."""
    policies = dict[str, Any]()
    if proxy.own.tier == "gateway":
        prefixes = tuple(path for path in (*API, *proxy.routes) if path != "/health")
        _add(policies, "edge sends clients' requests", proxy.identities("edge"), paths=("/health",), prefixes=prefixes)
        _add(policies, "workers register", proxy.identities("prefill", "decode"), paths=(REGISTER,))
    else:
        _add(policies, "gateways attach", proxy.identities("gateway"), paths=(ATTACH, STATS))
    if proxy.own.tier == "decode":
        _add(policies, "prefill opens sessions", proxy.identities("prefill"), paths=(SESSION,))
    policies["every member checks health"] = {
        "permissions": [_path("prefix", HEALTH)],
        "principals": [{"any": True}],
    }
    rules = {"action": "ALLOW", "policies": policies}  # all else: 403
    return extension("envoy.filters.http.rbac", "filters.http.rbac.v3.RBAC", rules=rules)


def _add(
    policies: dict[str, Any],
    name: str,
    identities: tuple[str, ...],
    *,
    paths: tuple[str, ...] = (),
    prefixes: tuple[str, ...] = (),
) -> None:
    if identities:  # a policy for no one would be refused by Envoy
        policies[name] = {
            "permissions": [_path("exact", path) for path in paths] + [_path("prefix", path) for path in prefixes],
            "principals": [{"authenticated": {"principal_name": {"exact": identity}}} for identity in identities],
        }


def _path(how: str, path: str) -> dict[str, Any]:
    return {"url_path": {"path": {how: path}}}
