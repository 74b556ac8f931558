"""`baton envoy render` and its errors: members, settings that disagree with them, and ports that collide."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from cli.envoy.command import app

PEERS = (
    "edge/edge=edge:8443",
    "gateway/gateway=gateway:50051",
    "prefill/prefill-1=prefill-1:7000",
    "decode/decode-1=decode-1:7000",
    "decode/decode-2=10.0.0.9:7000",
)
PEM = ("--certificate", "/tls/certificate.pem", "--key", "/tls/key.pem", "--ca", "/tls/ca.pem")
SETTINGS = {
    "edge": {},
    "gateway": {
        "sidecar": "127.0.0.1:15001",
        "gateway.grpc_address": "127.0.0.1:15051",
        "gateway.worker_address": "127.0.0.1:15052",
    },
    "prefill": {
        "sidecar": "127.0.0.1:15001",
        "worker.gateways": "gateway:50051",
        "worker.address": "127.0.0.1:17000",
        "worker.advertise_host": "prefill-1",
        "worker.advertise_port": "7000",
    },
}
SETTINGS["decode"] = SETTINGS["prefill"] | {"worker.advertise_host": "decode-1"}
NAMES = {"edge": "edge", "gateway": "gateway", "prefill": "prefill-1", "decode": "decode-1"}


def run(role: str, *more: str, peers: tuple[str, ...] = PEERS, pem: tuple[str, ...] = PEM, **changed: str) -> Any:
    settings = SETTINGS[role] | {key.replace("__", "."): value for key, value in changed.items()}
    arguments = ["render", "--role", role, "--name", NAMES[role], *pem, *more]
    arguments += [word for key, value in settings.items() if value for word in ("--set", f"{key}={value}")]
    arguments += [word for peer in peers for word in ("--peer", peer)]
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})


def rendered(role: str, *more: str, **changed: Any) -> dict[str, Any]:
    result = run(role, *more, **changed)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = yaml.safe_load(result.stdout)
    return found


def listener(config: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in config["static_resources"]["listeners"] if each["name"] == name]
    return found  # type: ignore[no-any-return]


def manager(config: dict[str, Any], name: str) -> dict[str, Any]:
    (chain,) = listener(config, name)["filter_chains"]
    return chain["filters"][0]["typed_config"]  # type: ignore[no-any-return]


def policies(role: str) -> dict[str, tuple[list[str], list[str]]]:
    """Paths and identities of each rule, by its name."""
    (rbac,) = [f for f in manager(rendered(role), "inbound")["http_filters"] if f["name"].endswith("rbac")]
    found = {}
    for name, policy in rbac["typed_config"]["rules"]["policies"].items():
        paths = [next(iter(each["url_path"]["path"].values())) for each in policy["permissions"]]
        found[name] = (
            paths,
            [
                p["authenticated"]["principal_name"]["exact"] if "authenticated" in p else "any"
                for p in policy["principals"]
            ],
        )
    return found


def test_only_gateways_attach_only_prefill_opens_sessions_and_only_workers_register() -> None:
    attach = ["/baton.worker.v1.WorkerService/Attach", "/baton.worker.v1.WorkerService/Stats"]
    health = (["/grpc.health.v1.Health/"], ["any"])
    workers = ["prefill/prefill-1", "decode/decode-1", "decode/decode-2"]
    gateways = {"gateways attach": (attach, ["spiffe://baton/gateway/gateway"]), "every member checks health": health}
    assert policies("prefill") == gateways
    session = (["/baton.kv.v1.KvService/Session"], ["spiffe://baton/prefill/prefill-1"])
    assert policies("decode") == gateways | {"prefill opens sessions": session}
    register = ["/baton.worker.v1.RegistryService/Register"]
    at_gateway = policies("gateway")
    assert at_gateway["workers register"] == (register, [f"spiffe://baton/{path}" for path in workers])
    api = ["/health", "/v1/", "/baton.inference.v1.", "/vllm.", "/grpc.reflection."]
    assert at_gateway["edge sends clients' requests"] == (api, ["spiffe://baton/edge/edge"])


def test_only_register_and_the_health_checks_of_workers_reach_the_port_of_workers() -> None:
    (host,) = manager(rendered("gateway"), "inbound")["route_config"]["virtual_hosts"]
    to_workers = [route["match"] for route in host["routes"] if route["route"]["cluster"] == "local_registry"]
    health, register = to_workers
    assert register == {"path": "/baton.worker.v1.RegistryService/Register"}
    (authority,) = health.pop("headers")
    assert health == {"prefix": "/grpc.health.v1.Health/"}
    assert authority["string_match"] == {"exact": "gateway:50051"}  # what the workers' Envoys send, and the edge's not
    checks = {each["name"]: each.get("health_checks") for each in rendered("prefill")["static_resources"]["clusters"]}
    assert checks["gateway/gateway"][0]["grpc_health_check"]["authority"] == "gateway:50051"
    public = [route["match"].get("prefix", "") for route in host["routes"] if route["match"] not in to_workers]
    assert not any("/baton.worker.v1.RegistryService/Register".startswith(prefix) for prefix in public[:-1] if prefix)
    (edge,) = manager(rendered("edge"), "edge")["route_config"]["virtual_hosts"]
    prefixes = [route["match"].get("prefix", "?") for route in edge["routes"] if "route" in route]
    for path in ("/baton.worker.v1.RegistryService/Register", "/baton.admin.v1.AdminService/Drain"):
        assert not any(path.startswith(prefix) for prefix in prefixes)


@pytest.mark.parametrize(
    ("role", "dialled"),
    [
        ("gateway", {"prefill/prefill-1", "decode/decode-1", "decode/decode-2"}),
        ("prefill", {"gateway/gateway", "decode/decode-1", "decode/decode-2"}),
        ("decode", {"gateway/gateway"}),
    ],
)
def test_outbound_has_one_pinned_cluster_per_peer_and_refuses_all_else(role: str, dialled: set[str]) -> None:
    config = rendered(role, "--trust-domain", "example.org")
    *hosts, unknown = manager(config, "outbound")["route_config"]["virtual_hosts"]
    addresses = dict(peer.split("=") for peer in PEERS)
    assert {host["name"]: host["domains"] for host in hosts} == {path: [addresses[path]] for path in dialled}
    assert unknown["domains"] == ["*"] and unknown["routes"][0]["direct_response"]["status"] == 404
    clusters = {each["name"]: each for each in config["static_resources"]["clusters"]}
    for path in dialled:
        context = clusters[path]["transport_socket"]["typed_config"]["common_tls_context"][
            "combined_validation_context"
        ]
        (san,) = context["default_validation_context"]["match_typed_subject_alt_names"]
        assert san == {"san_type": "URI", "matcher": {"exact": f"spiffe://example.org/{path}"}}
        (endpoint,) = clusters[path]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert endpoint["endpoint"]["address"]["socket_address"]["address"] == addresses[path].partition(":")[0]


def test_the_edge_sends_a_refused_request_to_another_gateway_only_where_there_is_one() -> None:
    def retry_on(config: dict[str, Any]) -> set[str]:
        routes = manager(config, "edge")["route_config"]["virtual_hosts"][0]["routes"]
        route = next(each for each in routes if "route" in each)
        return set(route["route"]["retry_policy"]["retry_on"].split(","))

    safe = {"connect-failure", "refused-stream", "reset-before-request"}
    assert retry_on(rendered("edge")) == safe
    assert retry_on(rendered("edge", peers=(*PEERS, "gateway/gateway-2=gateway-2:50051"))) == safe | {
        "retriable-headers"
    }


def test_the_admin_port_is_on_loopback_unless_the_option_says_otherwise() -> None:
    assert rendered("edge")["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"


def test_with_a_folder_of_secrets_the_certificates_come_from_it(tmp_path: Path) -> None:
    config = rendered("decode", "--secrets", str(tmp_path))
    assert "secrets" not in config["static_resources"]
    context = listener(config, "inbound")["filter_chains"][0]["transport_socket"]["typed_config"]["common_tls_context"]
    (own,) = context["tls_certificate_sds_secret_configs"]
    assert own["sds_config"]["path_config_source"] == {"path": str(tmp_path / "identity.yaml")}
    assert CliRunner().invoke(app, ["secrets", str(tmp_path), *PEM]).exit_code == 0
    files = {file.stem: yaml.safe_load(file.read_text())["resources"] for file in tmp_path.iterdir()}
    assert {name: [each["name"] for each in found] for name, found in files.items()} == {
        "identity": ["identity"],
        "authority": ["authority"],
    }


def test_without_a_collector_no_envoy_traces_and_workers_never_do() -> None:
    assert "tracing" not in manager(rendered("edge"), "edge")
    assert "tracing" in manager(rendered("edge", otlp_endpoint="http://collector:4317"), "edge")
    assert "tracing" in manager(rendered("gateway", "--otlp", "collector:4317"), "inbound")
    assert "tracing" not in manager(rendered("decode", "--otlp", "collector:4317"), "inbound")


@pytest.mark.parametrize(
    ("role", "more", "changed", "message"),
    [
        ("edge", ("--peer", "decode"), {}, "--peer decode: write TIER/NAME=HOST:PORT"),
        ("edge", ("--peer", "cache/a=a:1"), {}, "'cache' is no tier; take one of edge, gateway, prefill, decode"),
        ("edge", ("--peer", "decode/a b=a:1"), {}, "'a b' is no name"),
        ("edge", ("--peer", "decode/x=x"), {}, "--peer decode/x: 'x' is not host:port"),
        ("edge", ("--peer", "decode/x=x:0"), {}, "port 0 cannot be dialled"),
        ("edge", ("--peer", "decode/decode-1=other:7000"), {}, "has the same tier and name; each member"),
        ("edge", ("--peer", "decode/x=decode-1:7000"), {}, "has the same address; each member needs its own"),
        ("edge", ("--trust-domain", "A/b"), {}, "--trust-domain: 'A/b' is none"),
        ("edge", ("--admin", "127.0.0.1:8443"), {}, "--admin: 127.0.0.1:8443 takes the port of --listen 0.0.0.0:8443"),
        ("edge", ("--otlp", "https://c:4317"), {}, "--otlp: https://c:4317 asks for TLS"),
        ("edge", ("--route", "ui"), {}, "--route: 'ui' does not begin with a slash"),
        ("edge", ("--public-key", "/k"), {}, "--public-certificate and --public-key go together"),
        ("decode", ("--route", "/ui"), {}, "--route: /ui is for the edge and the gateways"),
        ("decode", ("--name", "decode-9"), {}, "decode/decode-9 itself is not among the members (edge/edge, "),
        ("gateway", (), {"sidecar": ""}, "sidecar: is not set"),
        ("decode", (), {"worker__address": "127.0.0.1:0"}, "address: 127.0.0.1:0 has no port yet"),
        (
            "decode",
            (),
            {"worker__address": "127.0.0.1:7000"},
            "the service's own port: 127.0.0.1:7000 takes the port of",
        ),
        ("decode", (), {"worker__gateways": "other:1"}, "gateways: other:1 is the address of no --peer gateway/NAME"),
        (
            "decode",
            (),
            {"worker__advertise_port": "7001"},
            "would advertise decode-1:7001, but --peer says decode/decode-1",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_the_option_or_key(
    role: str, more: tuple[str, ...], changed: dict[str, str], message: str
) -> None:
    result = run(role, *more, **changed)
    assert result.exit_code == 2 and message in result.stderr, result.stderr


def test_a_missing_certificate_is_named() -> None:
    result = run("edge", pem=PEM[:4])
    assert result.exit_code == 2 and "--ca: is missing; name the PEM file as this Envoy sees it" in result.stderr


def test_the_model_need_not_be_where_the_configuration_is_rendered(tmp_path: Any) -> None:
    file = tmp_path / "baton.toml"
    file.write_text("model = '/nowhere/model'\n")
    assert rendered("edge", "--config", str(file))["node"]["id"] == "edge/edge"


def test_a_client_that_does_not_read_holds_little_and_its_gateway_is_not_to_blame() -> None:
    config = rendered("edge", "--body-mib", "8")
    clients = manager(config, "edge")
    (gateways,) = [each for each in config["static_resources"]["clusters"] if each["name"] == "gateways"]
    (options,) = gateways["typed_extension_protocol_options"].values()
    assert options["explicit_http_config"]["http2_protocol_options"]["initial_stream_window_size"] == 65536
    assert clients["stream_flush_timeout"] == "30s"
    assert clients["http_filters"][0]["typed_config"]["max_request_bytes"] == 8 * 2**20
    assert gateways["outlier_detection"]["enforcing_consecutive_gateway_failure"] == 0
    actions = [action["name"] for action in config["overload_manager"]["actions"]]
    assert "envoy.overload_actions.reset_high_memory_stream" in actions
