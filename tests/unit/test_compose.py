"""compose/compose.yaml keeps its promises: every container hardened, every image a variable, every port on loopback."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

COMPOSE = Path(__file__).resolve().parents[2] / "compose"
Service = dict[str, Any]
# Containers without a health check of their own, and why.
UNCHECKED = {"prepare": "it ends", "token": "it ends", "collector": "its image has no program that could ask"}


def loaded(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((COMPOSE / name).read_text())
    return document


SERVICES: dict[str, Service] = loaded("compose.yaml")["services"]
SECOND: dict[str, Service] = loaded("second.yaml")["services"]
ADDED = {name: service for name, service in SECOND.items() if name not in SERVICES}


def faults(name: str, service: Service) -> list[str]:
    """Promises that this service breaks."""
    checks = {
        "runs as root": service.get("user", "root").split(":")[0] not in ("root", "0"),
        "its root is writable": service.get("read_only") is True,
        "keeps capabilities": service.get("cap_drop") == ["ALL"] and "cap_add" not in service,
        "may gain privileges": service.get("security_opt") == ["no-new-privileges:true"],
        "is privileged": not service.get("privileged")
        and service.get("pid") != "host"
        and service.get("ipc") != "host",
        "has no restart policy": "restart" in service,
        "has no memory limit": "memory" in service.get("deploy", {}).get("resources", {}).get("limits", {}),
        "its image is no variable": re.fullmatch(r"\$\{\w+(:-[^}]*)?\}", service.get("image", "")) is not None,
        "has no health check": "test" in service.get("healthcheck", {}) or name in UNCHECKED,
        "belongs to no profile": bool(service.get("profiles")),
        "is reachable from outside": all(str(port).startswith("127.0.0.1:") for port in service.get("ports", [])),
        "mounts the engine's socket": not any("docker.sock" in str(volume) for volume in service.get("volumes", [])),
    }
    return [fault for fault, fine in checks.items() if not fine]


@pytest.mark.parametrize("name", [*SERVICES, *ADDED])
def test_every_container_is_hardened(name: str) -> None:
    assert faults(name, {**SERVICES, **ADDED}[name]) == []
    assert loaded("second.yaml")["x-hardened"] == loaded("compose.yaml")["x-hardened"]


def test_a_careless_service_is_noticed() -> None:
    careless = {
        "image": "envoy:latest",
        "privileged": True,
        "ports": ["8000:8000"],
        "volumes": ["/var/run/docker.sock:/s"],
    }
    assert len(faults("careless", careless)) == 12


def test_every_image_and_base_has_a_value_in_both_environments() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    wanted = set(re.findall(r"\$\{((?:IMAGE|BASE)_\w+)", text))
    for name in (".env", "offline/.env"):
        values = dict(
            line.split("=", 1) for line in (COMPOSE / name).read_text().splitlines() if re.match(r"\w+=", line)
        )
        assert wanted <= set(values) and all(values.values()), name
    pinned = dict(re.findall(r"^((?:IMAGE|BASE)_\w+)=(\S+)$", (COMPOSE / ".env").read_text(), re.MULTILINE))
    assert all(re.search(r":v?\d|:local$|:gpu$", image) for image in pinned.values()), pinned


def test_no_interpolated_name_is_a_setting_of_baton() -> None:
    """A BATON_ variable in the shell would reach every `baton` command there, which refuses unknown ones."""
    assert re.findall(r"\$\{BATON_\w+", (COMPOSE / "compose.yaml").read_text()) == []


@pytest.mark.parametrize("profile", ["full", "lite", "tls"])
def test_a_profile_has_a_gateway_and_two_workers_of_each_tier(profile: str) -> None:
    prefix = "" if profile == "full" else f"{profile}-"
    members = {name for name, service in SERVICES.items() if profile in service["profiles"]}
    mesh = {f"{prefix}{name}" for name in ("gateway", "prefill-1", "prefill-2", "decode-1", "decode-2")}
    assert mesh <= members
    assert (members == mesh | {"token"}) == (profile == "lite")


@pytest.mark.parametrize(
    ("profile", "guard"), [("lite", "BATON_MESH_TOKEN_FILE"), ("tls", "BATON_TLS_CA"), ("full", "BATON_SIDECAR")]
)
def test_every_service_of_a_mesh_asks_its_peers_who_they_are(profile: str, guard: str) -> None:
    commands = (["serve", "gateway"], ["serve", "prefill"], ["serve", "decode"])
    mesh = [one for one in SERVICES.values() if profile in one["profiles"] and one.get("command") in commands]
    assert len(mesh) == 5 and all(guard in service["environment"] for service in mesh)


def test_every_gateway_can_ask_its_callers_for_keys() -> None:
    gateways = [each for each in SERVICES.values() if "gateway" in each.get("command", ())]
    gateways.append(SERVICES["gpu-mesh"])
    assert len(gateways) == 4
    for gateway in gateways:
        assert "BATON_GATEWAY_KEYS_FILE" in gateway["environment"]
        assert "${KEYS_FOLDER:-keys}:/keys:ro" in gateway["volumes"]


@pytest.mark.parametrize(("profile", "prefix"), [("full", ""), ("lite", "lite-")])
def test_a_second_model_has_workers_of_its_own_behind_the_same_gateway(profile: str, prefix: str) -> None:
    assert "BATON_MODELS" in SECOND[f"{prefix}gateway"]["environment"]
    for tier in ("prefill", "decode"):
        for number in (1, 2):
            assert "FIRST_MODEL" in SECOND[f"{prefix}{tier}-{number}"]["environment"]["BATON_MODEL"]
        worker, first = ADDED[f"{prefix}second-{tier}-1"], SERVICES[f"{prefix}{tier}-1"]
        assert worker["profiles"] == [profile] and worker["command"] == first["command"]
        assert "SECOND_MODEL" in worker["environment"]["BATON_MODEL"]
        passed_on = {name for name, value in first["environment"].items() if value is None}
        assert set(worker["environment"]) == set(first["environment"]) - passed_on | {"BATON_MODEL"}


@pytest.mark.parametrize("second", [{}, SECOND], ids=["one model", "two models"])
@pytest.mark.parametrize("profile", ["full", "lite", "tls"])
def test_every_worker_of_a_host_has_a_number_of_its_own(profile: str, second: dict[str, Service]) -> None:
    laid = {name: environment(name, second) for name in SERVICES | second if profile in profiles(name)}
    hosts = [each for each in laid.values() if "BATON_WORKER_WORKERS_ON_HOST" in each]
    numbers = [int(value) for each in hosts for key, value in each.items() if key.endswith("_WORKER_ON_HOST")]
    assert sorted(numbers) == list(range(len(hosts)))
    assert {int(each["BATON_WORKER_WORKERS_ON_HOST"]) for each in hosts} == {len(hosts)}


def profiles(name: str) -> list[str]:
    found: list[str] = (SERVICES.get(name) or ADDED[name]).get("profiles", [])
    return found


def environment(name: str, second: dict[str, Service]) -> dict[str, Any]:
    """The environment of a service, with second.yaml laid over compose.yaml."""
    return SERVICES.get(name, {}).get("environment", {}) | second.get(name, {}).get("environment", {})


def test_every_sidecar_of_the_second_model_gets_a_certificate() -> None:
    more = SECOND["prepare"]["environment"]["MORE_WORKERS"].split()
    assert {f"{name}-envoy" for name in more} == {name for name in ADDED if name.endswith("-envoy")}
    folders = re.findall(r"/mesh/(second-[\w-]+)", (COMPOSE / "Dockerfile").read_text())
    assert set(folders) == set(more) <= set(loaded("second.yaml")["volumes"])


def test_whatever_a_service_waits_for_starts_with_every_profile_of_it() -> None:
    services = {**SERVICES, **ADDED}
    for name, service in services.items():
        for other in service.get("depends_on", {}):
            assert set(service["profiles"]) <= set(services[other]["profiles"]), f"{name} waits for {other}"


def test_every_sidecar_shares_its_network_with_its_service() -> None:
    sidecars = [name for name in SERVICES if name.endswith("-envoy")]
    assert len(sidecars) == 5
    for sidecar in sidecars:
        assert SERVICES[sidecar.removesuffix("-envoy")]["network_mode"] == f"service:{sidecar}"


def test_the_smoke_test_refuses_a_second_model_in_a_profile_that_has_none() -> None:
    command = ["bash", str(COMPOSE / "smoke.sh"), "--second", "--profile", "tls"]
    ended = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "DOCKER": "false"})
    assert ended.returncode == 2 and "--profile full or lite" in ended.stderr


def test_files_that_are_mounted_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE / source).exists(), source


@pytest.mark.parametrize("section", ["receivers", "processors", "exporters"])
def test_the_collector_defines_what_its_pipelines_name(section: str) -> None:
    config = loaded("collector.yaml")
    for pipeline in config["service"]["pipelines"].values():
        assert set(pipeline[section]) == set(config[section])


def test_prometheus_scrapes_every_member() -> None:
    jobs = {
        job["job_name"]: job["static_configs"][0]["targets"]
        for job in loaded("../deploy/prometheus/prometheus.yaml")["scrape_configs"]
    }
    sidecars = {name.removesuffix("-envoy") for name in SERVICES if name.endswith("-envoy")} | {"edge"}
    assert {target.partition(":")[0] for target in jobs["envoy"]} == sidecars


def test_the_bill_of_materials_names_every_distribution_and_what_it_requires(tmp_path: Path) -> None:
    target = tmp_path / "bill.json"
    subprocess.run([sys.executable, COMPOSE / "sbom.py", "--name", "image", "--output", target], check=True)
    bill = json.loads(target.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    versions = {entry["name"].lower(): entry["version"] for entry in bill["components"]}
    assert {"grpcio", "numpy", "tokenizers"} <= set(versions) and all(versions.values())
    known = {entry["bom-ref"] for entry in bill["components"]}
    assert all(set(entry["dependsOn"]) <= known and entry["ref"] in known for entry in bill["dependencies"])
    requires = {entry["ref"].split("@")[0]: entry["dependsOn"] for entry in bill["dependencies"]}
    assert any(ref.startswith("pkg:pypi/grpcio@") for ref in requires["pkg:pypi/grpcio-status"])
